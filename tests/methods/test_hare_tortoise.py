"""Hare & Tortoise: closed forms of the average, the return to it, and what evaluations see."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.agents.dqn import DQN
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.run import api
from rlplast.training import checkpoint
from tests.methods.nets import snapshot
from tests.methods.unit_nets import NETS, Trained
from tests.models import assert_same
from tests.runs import TINY
from tests.syncs import host_reads

NEVER = "99 updates"


def row(every: str = NEVER, **more: Any) -> dict[str, Any]:
    return {"method": "hare_tortoise", "every": every, **more}


def hooks_on(network: Network, every: str = NEVER, **params: Any) -> rlplast.Hooks:
    return rlplast.Hooks([row(every, params=params)], network, "100 updates")


def test_before_the_first_update_nothing_is_returned_to() -> None:
    made = Trained("mlp").train(2)
    config = {"method": "hare_tortoise", "at": "0%"}
    hooks = rlplast.Hooks([config], made.network, "100 updates")
    before = made.state()
    [receipt] = hooks.step(updates=0)
    assert receipt.sfe == receipt.entries_touched == 0
    assert_same(before, made.state())
    assert not hooks.evaluation()
    with pytest.raises(ConfigError, match=r"hooks\[1\].* hooks\[0\]"):  # both name its weights
        rlplast.Hooks([row(), row("7 updates")], made.network, "100 updates")
    by_epochs = rlplast.Hooks([row("2 epochs")], made.network, "10 epochs")
    with pytest.raises(ConfigError, match="updates"):
        by_epochs.step(epochs=1)
    module = nn.Sequential(nn.Conv1d(2, 2, 1), nn.Linear(3, 2), nn.Linear(2, 2))
    module[1].requires_grad_(False)  # what is frozen or out of scope has no copy
    hooks = rlplast.Hooks([row(scope="sac")], Network("net", module), "100 updates")
    names = {n for n in hooks.hooks[0].states["net"] if n.startswith("slow/")}
    assert names == {"slow/2.weight", "slow/2.bias"}


def test_of_low_precision_the_slow_copy_is_kept_in_float32_and_evaluated_in_low_precision() -> None:
    module = nn.Linear(3, 2).to(torch.bfloat16)
    hooks = hooks_on(Network("net", module))
    hooks.step(updates=1)
    with torch.no_grad():
        module.weight.fill_(1.0)
    before = hooks.hooks[0].states["net"]["slow/weight"].clone()
    hooks.step(updates=2)  # a step of 1/1000, which bf16 would not see
    moved = hooks.hooks[0].states["net"]["slow/weight"] - before
    torch.testing.assert_close(moved, (1 - before) / 1000, rtol=1e-3, atol=1e-7)


def test_a_run_is_evaluated_with_its_slow_copy_while_it_trains_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[dict[str, Tensor], Any]] = []
    play: Any = DQN.play

    def spied(agent: Any, *args: Any, **options: Any) -> Any:
        seen.append((snapshot(agent.online), agent))
        return play(agent, *args, **options)

    monkeypatch.setattr(DQN, "play", spied)
    hooks = [row("10 updates", params={"momentum": 0.9})]
    run = api.train(TINY | {"hooks": hooks, "total": "60 env_steps"}, tmp_path / "run")
    _, state = checkpoint.load(checkpoint.newest(run.path / "checkpoints")[0])
    [saved] = [v["states"]["q"] for k, v in state["hooks"].items() if k.startswith("hare_tortoise")]
    slow = {n.removeprefix("slow/"): t for n, t in saved.items() if n.startswith("slow/")}
    weights, trained = seen[-1]  # the evaluation at the end
    assert_same(slow, weights)
    assert any(not torch.equal(slow[n], t) for n, t in trained.online.state_dict().items())
    opened = api.load(run.path)
    opened.evaluate(episodes=2)
    assert_same(slow, seen[-1][0])
    assert_same(slow, snapshot(opened.agent().online))


@pytest.mark.slow
def test_the_average_agrees_eager_and_compiled() -> None:
    torch._dynamo.reset()
    states = []
    for compiled in (False, True):
        made = Trained("conv_batchnorm")
        hook = hooks_on(made.network, momentum=0.9).hooks[0]
        tick = torch.compile(hook.tick, backend="aot_eager", fullgraph=True)
        for _ in range(3):
            made.update()
            with nullcontext([]) if compiled else host_reads() as found:
                (tick if compiled else hook.tick)(rlplast.Clock(updates=1), 0)
            assert found == []
        states.append(hook.states["net"])
    torch._dynamo.reset()
    assert int(states[0]["updates"]) == 3
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize("net", NETS)
def test_weights_and_statistics_are_averaged_evaluated_and_return_to_the_slow_copy(
    net: str,
) -> None:
    made = Trained(net)
    hooks = hooks_on(made.network, "5 updates", momentum=0.9)
    slow: dict[str, Tensor] = {}  # of a loop of its own in float64: all tensors but whole counts

    def assert_slow() -> None:
        for name, tensor in made.state().items():
            expected = slow.get(name, tensor.double())
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-6, msg=name)

    for update in range(1, 6):
        made.update()
        fast = {n: t.double() for n, t in made.state().items() if t.is_floating_point()}
        slow = {n: 0.9 * slow.get(n, t) + (1 - 0.9) * t for n, t in fast.items()}
        before = made.state()
        addresses = [t.data_ptr() for t in made.module.state_dict().values()]
        hooks.step(updates=update)
        if update < 5:
            with pytest.raises(ZeroDivisionError), hooks.evaluating():
                assert_slow()
                raise ZeroDivisionError
            assert_same(before, made.state())  # back bit for bit; and no update has moved a weight
            assert addresses == [t.data_ptr() for t in made.module.state_dict().values()]
    assert_slow()
    assert any(not torch.equal(t, before[n]) for n, t in made.state().items())
