"""Reading a network changes nothing in it: modes, buffers and generators are as before.

Its networks have batch norm and dropout, count their calls and draw in every one of them.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.adapters.reading import LastBatch
from rlplast.adapters.sb3_networks import find_networks
from rlplast.adapters.sb3_probe import Experience
from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError
from rlplast.core.method import readings
from rlplast.core.method.context import Context
from rlplast.core.method.deviation import deviation
from rlplast.core.method.method import implements
from rlplast.core.method.readings import OwnSource, Probe
from rlplast.core.network.blocks import Block
from rlplast.core.network.edits import write
from rlplast.core.network.factory import checked
from rlplast.core.network.modes import reading
from rlplast.core.network.network import Network
from rlplast.core.network.order import forward_order
from rlplast.core.network.segments import segments
from rlplast.core.registry import get, rows
from rlplast.metrics import output_probe, readiness
from rlplast.metrics.curvature import IN_A_RUN
from rlplast.metrics.diagnosis import diagnose_network
from rlplast.metrics.probe import check_names, measure_run, weights_of
from rlplast.run import api
from rlplast.run.build import build
from rlplast.run.config_file import read_config
from tests.adapters.hosts import sb3_model
from tests.cases import CASES
from tests.every_kind import small_run
from tests.gpt.runs import MODEL, write_corpora
from tests.marks import slow_but
from tests.runs import check_resumes, final


class Restless(nn.Module):
    """Counts its calls, in a buffer and beside it, and adds noise that grows with their number."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.calls.add_(1)
        return x + 1e-3 * self.calls * torch.randn(())


class Unsaved(nn.Module):
    """Puts another tensor into its buffer, keeps its input, and draws where nothing is saved."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.last: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls, self.last = self.calls + 1, x
        return x + 1e-3 * np.random.rand() + 1e-3 * random.random()


def layers(size: int, *ends: nn.Module) -> nn.Sequential:
    hidden = [nn.Linear(size, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(Restless(), *hidden, nn.Linear(8, 8), nn.ReLU(), *ends)


class Joined(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = layers(size)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.layers(torch.cat([obs, action], 1))


def of_dqn(obs_shape: tuple[int, ...], num_actions: int) -> nn.Module:
    return layers(obs_shape[0], nn.Linear(8, num_actions))


def of_sac(obs_shape: tuple[int, ...], action_dim: int) -> tuple[nn.Module, nn.Module]:
    return layers(obs_shape[0]), Joined(obs_shape[0] + action_dim)


def of_ppo(obs_shape: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    return layers(obs_shape[0]), layers(obs_shape[0])


def of_ppo_shared(obs_shape: tuple[int, ...]) -> nn.Module:
    return layers(obs_shape[0])


def of_pictures(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    size = int(np.prod(input_shape))
    return nn.Sequential(nn.Flatten(), layers(size, nn.Linear(8, num_classes)))


OWN = __name__
CART = {"id": "gym/CartPole-v1", "num_envs": 2, "options": {"max_episode_steps": 15}}
REPLAY = {"batch_size": 8, "buffer_size": 80, "initial_steps": 20}
ROLLOUT = {"rollout_steps": 10, "batch_size": 10, "epochs": 2}
RUNS: dict[str, dict[str, Any]] = {
    "dqn": {"agent": REPLAY | {"network": f"{OWN}:of_dqn", "target_every": 10}, "env": CART},
    "sac": {"agent": REPLAY | {"network": f"{OWN}:of_sac"}},
    "ppo": {"agent": ROLLOUT | {"network": f"{OWN}:of_ppo"}, "env": CART},
    "ppo shared": {
        "agent": ROLLOUT | {"network": f"{OWN}:of_ppo_shared", "shared_trunk": True},
        "env": CART,
    },
    "supervised": {"model": {"name": f"{OWN}:of_pictures"}},
    "gpt": {"model": MODEL | {"dropout": 0.2}},
}
AGENTS = ("dqn", "sac", "ppo", "ppo shared")
OTHERS = ("loop", "sb3 SAC", "hf")  # Lightning reads as Hugging Face does
READERS = {
    *("c_chain", "cbp", "dash", "distill", "drm", "infer", "l2_er", "pfo"),
    *("redo", "regrama", "renew_weights", "sigreg", "snr"),
}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make metrics that train copies, or follow a spectrum, cheap."""
    monkeypatch.setitem(IN_A_RUN, "probes", 1)
    monkeypatch.setitem(IN_A_RUN, "steps", 3)
    for name, value in (("TARGETS", 2), ("STEPS", 2), ("SAMPLES", 3)):
        monkeypatch.setattr(output_probe, name, value)
    monkeypatch.setattr(readiness, "BATCHES", 3)


def config(of: str, corpora: dict[str, str], **changes: Any) -> dict[str, Any]:
    return small_run(of.split()[0], corpora) | RUNS[of] | changes


def extractor() -> Any:
    from stable_baselines3.common.torch_layers import FlattenExtractor

    class Extractor(FlattenExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space)
            self.restless = nn.Sequential(Restless(), nn.BatchNorm1d(self.features_dim))

        def forward(self, observations: Tensor) -> Tensor:
            return self.restless(super().forward(observations))

    return Extractor


def source_of(of: str, corpora: dict[str, str]) -> Any:
    """Return what is read: a trainer after some updates, or what others are read from."""
    if of in RUNS:
        plain = {"hooks": [], "penalties": []} if of != "gpt" else {"hooks": []}
        trainer, _ = build(read_config(config(of, corpora, **plain)))
        while trainer.clock.updates < 5:
            trainer.step()
        return trainer
    if of == "sb3 SAC":
        policy = {"net_arch": [8, 8], "features_extractor_class": extractor()}
        model = sb3_model("SAC", policy_kwargs=policy | {"activation_fn": nn.ReLU})
        model.learn(40)
        return Experience(model, find_networks(model), 0)
    module = layers(5, nn.Linear(8, 3))
    networks = {"model": Network("model", module, torch.optim.Adam(module.parameters()))}
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    if of == "loop":
        return OwnSource(networks, x, lambda batch: module(batch).square().mean())
    source = LastBatch(networks, ["model"])
    handles = source.start()
    module(x)
    [handle.remove() for handle in handles]
    return source


def state_of(**modules: nn.Module) -> dict[str, Any]:
    """Return all that a reading might change."""
    found: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": str(np.random.get_state()),
        "python": random.getstate(),
    }
    for name, module in modules.items():
        for path, part in module.named_modules(remove_duplicate=False):
            own = f"{name}.{path}"
            for key, value in vars(part).items():
                found[f"{own}/{key}"] = value if isinstance(value, int | float | str) else id(value)
            for key, value in (*part._buffers.items(), *part._parameters.items()):
                found[f"{own}/{key} itself"] = id(value)
                found[f"{own}/{key}"] = None if value is None else value.detach().clone()
    return found


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    def same(one: Any, other: Any) -> bool:
        return torch.equal(one, other) if isinstance(one, Tensor) else one == other

    names = before.keys() | after.keys()
    return [name for name in names if not same(before.get(name), after.get(name))]


def leaves(source: Any, read: Callable[[], object]) -> None:
    """Check that a reading leaves all networks as they are."""
    modules = {name: network.module for name, network in source.networks.items()}
    for name, network in source.networks.items():
        modules |= {f"{name}.{key}": each.module for key, each in network.followers.items()}
    before = state_of(**modules)
    read()
    assert changed(before, state_of(**modules)) == []


@pytest.mark.parametrize("of", slow_but({*RUNS, *OTHERS} - {"ppo"}, [*RUNS, *OTHERS]))
def test_readings_change_nothing(
    of: str, corpora: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(of, corpora)
    activations_outputs_and_losses(of, source)
    if of in RUNS:
        leaves(source, lambda: source.evaluate(0, 1))
    if of in AGENTS:
        leaves(source, lambda: source.act(source.experience.obs()))
    if of == "supervised":
        leaves(source, lambda: source.predict(source.sample(8, 0).pixels()))
    if of in (*RUNS, "loop"):
        every_metric(source)
        every_method_that_reads(source, monkeypatch)
    getattr(source, "close", tuple)()


def activations_outputs_and_losses(of: str, source: Any) -> None:
    batch, read = source.sample(8, 0), 0
    for name, network in source.networks.items():
        if network.units().groups:
            leaves(source, partial(source.activations, name, batch))
            read += 1
        leaves(source, partial(source.outputs, name, batch))
        for train in (False, True) if of in (*RUNS, "loop") else ():
            leaves(source, partial(source.loss, name, batch, train))
            loss = source.loss(name, batch, train)
            own = [block.param for block in network.trainable()]  # its graph outlives the reading
            leaves(source, partial(torch.autograd.grad, loss, own, allow_unused=True))
    assert read


def every_metric(source: Any) -> None:
    before = {name: weights_of(n.module) for name, n in source.networks.items()}
    found: set[str] = set()
    for name in (row.name for row in rows("metrics")):
        try:
            check_names([name])
        except ConfigError:  # it is none of a run
            continue
        measure = partial(measure_run, source, [name], 8, 1, (), before)
        leaves(source, lambda m=measure: found.update(key.split("/")[1] for key in m()))
    assert len(found) > 25


def every_method_that_reads(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found, read = set(), [0]

    def counted(*args: Any, **options: Any) -> Any:
        read[0] += 1
        return reading(*args, **options)

    monkeypatch.setattr(readings, "reading", counted)
    for name in (*CASES, *(row.name for row in rows("penalties"))):
        params = CASES[name].params if name in CASES else {}
        kind: Any = get("methods", name).target
        for network in source.networks.values() if {*kind.reads} - {"moments"} else ():
            method = kind(**params)
            blocks = tuple(b for b in network.trainable() if method.covers(b))
            try:
                state = method.setup(network, blocks)
            except ConfigError:  # such as a temperature, which has no units
                continue
            probe = Probe(source, network, 8, 0, name)
            context = Context(network, blocks, reads=method.reads, readings=probe)
            read[0] = 0
            if implements(method, "plan"):
                plan = partial(method.plan, context, state)
                leaves(source, plan)
                write([edit for edit in plan() if not isinstance(edit.target, Block)])
            if implements(method, "term") and blocks:
                leaves(source, partial(method.term, context, state))
            found |= {name} if read[0] else set()
    assert found == READERS
    for network in source.networks.values():
        if network.units().groups:
            leaves(source, partial(deviation, network, [], source, 8, 0))


def test_a_loss_in_training_mode_leaves_the_mode_of_its_target() -> None:
    net, target = (layers(5, nn.Linear(8, 3)) for _ in range(2))
    for module in (net, target):
        module.eval()
    seen: list[bool] = []

    def loss(batch: Tensor) -> Tensor:
        seen.extend([net.training, target.training])
        return (net(batch) - target(batch).detach()).square().mean()

    network = Network("net", net, torch.optim.Adam(net.parameters()), target)
    source = OwnSource({"net": network}, torch.randn(9, 5), loss)
    for train in (True, False):
        leaves(source, partial(source.loss, "net", source.sample(0, 0), train))
    assert seen == [True, False, False, False]


def test_diagnosis_of_a_module() -> None:
    source = source_of("loop", {})
    network, x = source.networks["model"], torch.randn(9, 5)
    batch = source.sample(0, 0)
    leaves(source, lambda: diagnose_network(source, network, batch, updates=2, targets=2))
    leaves(source, lambda: rlplast.diagnose_module(network.module, x, updates=2, targets=2))


@pytest.mark.parametrize("train", [True, False])
def test_what_looks_at_a_module_leaves_it_as_it_is_also_after_an_error(train: bool) -> None:
    module = nn.Sequential(Unsaved(), layers(5, nn.Linear(8, 3)))
    module.train(train)
    module.get_submodule("1.2").eval()  # a frozen part
    network = Network("net", module)

    def fail(copies: bool) -> None:
        with pytest.raises(ZeroDivisionError), reading(module, copies=copies):
            assert not any(part.training for part in module.modules())
            module(torch.randn(4, 5))
            raise ZeroDivisionError

    for look in (
        network.units,
        lambda: forward_order(network),
        lambda: segments(module, lambda path: True),
        lambda: rlplast.units(module),
        partial(fail, True),
        partial(fail, False),
    ):
        before = state_of(net=module)
        look()
        assert changed(before, state_of(net=module)) == []
    assert [g.name for g in network.units().groups] == ["1.1", "1.5"]


def test_a_module_of_a_function_begins_as_the_function_made_it() -> None:
    module, width = checked(
        "model", nn.Sequential(Restless(), nn.Linear(5, 3)), [torch.zeros(2, 5)]
    )
    counter = module.get_submodule("0")
    assert width == 3 and module.training and not counter.calls and counter.passes == 0


@pytest.mark.parametrize("of", slow_but(["dqn"], ["dqn", "ppo shared", "supervised"]))
def test_runs_whose_units_are_first_looked_for_after_the_load(
    of: str, corpora: dict[str, str], tmp_path: Path
) -> None:
    reset = {"method": "full_reset", "at": "70%", "params": {"init": "fresh"}}
    measured = {"every": "20%", "names": ["dormant_ratio", "gradient_norm"], "batch_size": 8}
    evaluated = {"every": "30%", "episodes": 1}
    changes = {"hooks": [reset], "metrics": measured, "evaluate": evaluated}
    expected = check_resumes(config(of, corpora, **changes), tmp_path)
    arm = read_config(config(of, corpora, **changes, checkpoint={"every": "10%", "keep": 99}))
    prefix = read_config(config(of, corpora, **changes | {"hooks": []}))
    stop = (Time(20, "updates") if of == "supervised" else Time(60, "env_steps"),)
    api.train(prefix, tmp_path / "prefix", until=stop)
    api.branch(tmp_path / "prefix", tmp_path / "arm", arm, stop)
    api.resume(tmp_path / "arm")
    branched = final(tmp_path / "arm")
    assert branched["tensors.safetensors"] == expected["tensors.safetensors"]
    assert branched["metrics"] == expected["metrics"]


class Plain(nn.Module):
    """Keeps its state in no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.count, self.calls = nn.Linear(6, 2), torch.zeros(()), [0]
        self.rng = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.calls.append(len(self.calls))
        return self.out(x) * self.count + torch.rand((), generator=self.rng) * len(self.calls)


@pytest.mark.parametrize("copies", [True, False])
def test_what_a_module_keeps_in_plain_tensors_containers_and_generators_stays(copies: bool) -> None:
    module, twin, x = Plain(), Plain(), torch.randn(4, 6)
    twin.load_state_dict(module.state_dict())
    twin(x)  # the uninterrupted one
    module(x)
    objects = [id(held) for held in (module.count, module.calls, module.rng)]
    with reading(nn.Sequential(module), copies=copies):
        first, second = module(x), module(x)
    assert not torch.equal(first, second)
    assert objects == [id(held) for held in (module.count, module.calls, module.rng)]
    assert torch.equal(module(x), twin(x))


def test_a_network_is_not_viewed_anew_while_a_part_of_it_is_read() -> None:
    module = nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), nn.Linear(4, 2))
    network = Network("n", module, torch.optim.Adam(module.parameters()))
    with reading(module[0]):
        network.refresh()
    assert rlplast.full_reset(network).entries_touched > 0
    with torch.no_grad():
        module[0][1].running_mean.fill_(5)  # type: ignore[union-attr]
    rlplast.full_reset(network)
    assert not module[0][1].running_mean.any()  # type: ignore[union-attr]
