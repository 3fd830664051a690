"""Beside the hooks of a callback, bare ones on copies, told by hand what an update read."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlplast.adapters.driver import Driver
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.receipt import Receipt
from rlplast.core.network.network import Network
from tests.adapters.hosts import state

Activations = dict[str, Tensor]
Networks = Mapping[str, Network]


def everything(networks: Networks) -> dict[str, Tensor]:
    """Weights of networks and followers, and what the optimizers remember."""
    found = {}
    for name, network in networks.items():
        own = state(network.optimizers, network.module)
        found |= {f"{name}/{key}": value for key, value in own.items()}
        for follower in network.followers.values():
            own = state([], follower.module)
            found |= {f"{name}/follower/{key}": value for key, value in own.items()}
    return found


def give(source: Networks, goal: Networks) -> None:
    for name, network in source.items():
        other = goal[name]
        followers = zip(network.followers.values(), other.followers.values(), strict=True)
        for mine, theirs in ((network, other), *followers):
            theirs.module.load_state_dict(mine.module.state_dict())
        for mine, theirs in zip(network.optimizers, other.optimizers, strict=True):
            theirs.load_state_dict(mine.state_dict())


def plain(receipt: Receipt) -> dict[str, Any]:
    return {k: v for k, v in receipt.row().items() if not k.startswith("time/")}


@torch.no_grad()
def hidden(prefix: str, layers: Any, x: Tensor) -> Activations:
    """Activations after each ReLU of a chain of layers, by the place of the layer before it."""
    found = {}
    for i, layer in enumerate(layers):
        x = layer(x)
        if isinstance(layer, nn.ReLU):
            found[f"{prefix}{i - 1}"] = x
    return found


class ByHand:
    """Watches the drivers of one test.

    `read` gives the activations of a network's current update, by hand, asked at the step of its
    optimizer; `probe` the batch of a scheduled firing.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        configs: Any,
        seed: int,
        read: Callable[[str], Activations],
        probe: Any,
    ) -> None:
        self.configs, self.seed, self.read, self.probe = configs, seed, read, probe
        self.bare: dict[int, tuple[Hooks, dict[str, Network]]] = {}
        self.update: dict[str, Activations] = {}
        self.empty: list[tuple[int, str]] = []
        self.changed: set[str] = set()
        self.updates = 0
        begin, step, flush = Driver.begin, Hooks.step, Hooks.flush
        monkeypatch.setattr(Driver, "begin", self.watched(begin))
        monkeypatch.setattr(Hooks, "step", self.beside(step))
        monkeypatch.setattr(Hooks, "flush", self.flushed(flush))

    def watched(self, begin: Any) -> Any:
        def call(driver: Driver, networks: Networks, *args: Any, **kw: Any) -> None:
            for name, network in networks.items():
                network.optimizers[-1].register_step_pre_hook(self.stepping(name))
            begin(driver, networks, *args, **kw)

        return call

    def stepping(self, name: str) -> Any:
        def call(*_: Any) -> None:
            if name not in self.update:
                self.update[name] = self.read(name)

        return call

    def beside(self, step: Any) -> Any:
        def call(hooks: Hooks, *, activations: Any = None, **counts: int) -> Any:
            if any(hooks is bare for bare, _ in self.bare.values()):
                return step(hooks, activations=activations, **counts)
            bare, copies = self.pair(hooks)
            if hooks.clock is not None:  # PPO counts steps that what is due by them waits for
                bare.go_to(hooks.clock)
            ends = counts.get("updates", 0) > self.updates
            give(hooks.networks, copies)
            self.compare(activations)
            mine = None if activations is None else {n: self.update.get(n, {}) for n in activations}
            before = everything(hooks.networks)
            expected = step(bare, activations=mine, **counts)
            found = step(hooks, activations=activations, **counts)
            after, theirs = everything(hooks.networks), everything(copies)
            for key, value in after.items():
                assert torch.equal(value, theirs[key]), key
                if not torch.equal(value, before[key]):
                    self.changed.add(key.split("/")[0])
            assert [plain(r) for r in found] == [plain(r) for r in expected]
            if ends:
                self.updates, self.update = counts["updates"], {}
            return found

        return call

    def flushed(self, flush: Any) -> Any:
        def call(hooks: Hooks) -> Any:
            found = flush(hooks)
            bare, copies = self.pair(hooks)
            give(hooks.networks, copies)
            mine = [plain(r) for r in flush(bare, hooks.clock)]
            assert [plain(r) for r in found] == mine
            return found

        return call

    def compare(self, activations: Any) -> None:
        for name, found in (activations or {}).items():
            mine = self.update.get(name, {})
            if not found:
                self.empty.append((self.updates + 1, name))
            assert found.keys() == mine.keys(), name
            for key, value in found.items():
                assert torch.equal(value, mine[key]), (name, key)
                assert not value.requires_grad and value.grad_fn is None

    def pair(self, hooks: Hooks) -> tuple[Hooks, dict[str, Network]]:
        if id(hooks) not in self.bare:
            copies = copy.deepcopy(dict(hooks.networks))
            about: dict[str, Any] = {"horizon": hooks.horizon, "probe": self.probe}
            bare = Hooks(self.configs, copies, hooks.total, self.seed, **about)
            self.bare[id(hooks)] = bare, copies
        return self.bare[id(hooks)]


class Replayed:
    """The batches that an algorithm with a replay trains on, and those its probes should draw."""

    def __init__(self, model: Any) -> None:
        self.model, self.batch = model, None
        sample = model.replay_buffer.sample

        def kept(*args: Any, **kwargs: Any) -> Any:
            self.batch = sample(*args, **kwargs)
            return self.batch

        model.replay_buffer.sample = kept

    def read(self, name: str) -> Activations:
        policy, batch = self.model.policy, self.batch
        if name == "q":
            return hidden("q_net.", policy.q_net.q_net, batch.observations)
        if name == "actor":
            key = "latent_pi" if hasattr(policy.actor, "latent_pi") else "mu"
            return hidden(f"{key}.", getattr(policy.actor, key), batch.observations)
        if name == "critic":
            x = torch.cat([batch.observations, batch.actions], 1)
            return hidden("qf0.", policy.critic.qf0, x) | hidden("qf1.", policy.critic.qf1, x)
        return {}

    def draw(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        replay = self.model.replay_buffer
        seed = int(torch.randint(2**32, (), generator=generator))
        draws = np.random.RandomState(seed)
        rows = draws.randint(0, replay.pos, size)
        envs = draws.randint(0, replay.n_envs, size)
        observations = torch.tensor(replay.observations[rows, envs])
        return observations, torch.tensor(replay.actions[rows, envs])

    def probe(self, names: Any) -> dict[str, Any]:
        alone = lambda size, generator: self.draw(size, generator)[0]  # noqa: E731
        return {name: self.draw if name == "critic" else alone for name in names}


class Played:
    """The minibatches that PPO trains on, and the rollout that its probes draw from."""

    def __init__(self, model: Any) -> None:
        self.model, self.batch, self.rollout = model, None, None
        get = model.rollout_buffer.get

        def kept(*args: Any) -> Any:
            if not model.rollout_buffer.generator_ready:
                self.rollout = torch.tensor(model.rollout_buffer.observations).view(-1, 64)
            for self.batch in get(*args):
                yield self.batch

        model.rollout_buffer.get = kept

    def read(self, name: str) -> Activations:
        layers, x = self.model.policy.mlp_extractor, self.batch.observations  # type: ignore[union-attr]
        policy = hidden("mlp_extractor.policy_net.", layers.policy_net, x)
        return policy | hidden("mlp_extractor.value_net.", layers.value_net, x)

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        assert self.rollout is not None
        return self.rollout[torch.randint(len(self.rollout), (size,), generator=generator)]

    def probe(self, names: Any) -> Any:
        return self.draw
