"""Hare & Tortoise: closed forms of the average, the return to it, and what evaluations see."""

import copy
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


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in module.state_dict().items()}


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


def test_evaluations_see_the_slow_copy_and_the_weights_come_back_bit_for_bit() -> None:
    made = Trained("conv_batchnorm")
    hooks = hooks_on(made.network, momentum=0.9)
    for update in range(1, 5):
        made.update()
        hooks.step(updates=update)
    before = made.state()
    addresses = [t.data_ptr() for t in made.module.state_dict().values()]
    state = hooks.hooks[0].states["net"]
    with pytest.raises(ZeroDivisionError), hooks.evaluating():
        for name, tensor in made.state().items():
            expected = state.get(f"slow/{name}", before[name])  # whole counts are its own
            assert torch.equal(tensor, expected), name
        assert not torch.equal(made.state()["0.weight"], before["0.weight"])
        raise ZeroDivisionError
    assert_same(before, made.state())
    assert addresses == [t.data_ptr() for t in made.module.state_dict().values()]


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
    run = api.train(TINY | {"hooks": hooks}, tmp_path / "run")
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
def test_weights_and_statistics_are_averaged_and_return_to_the_slow_copy_in_place(net: str) -> None:
    made = Trained(net)
    target = copy.deepcopy(made.module).requires_grad_(False)
    network = Network("net", made.module, made.optimizer, target)
    config = row("5 updates", followers="same_edit", params={"momentum": 0.9})
    hooks = rlplast.Hooks([config], network, "100 updates")
    state = hooks.hooks[0].states["net"]
    addresses = {n: t.data_ptr() for n, t in made.module.state_dict().items()}
    slow: dict[str, Tensor] = {}  # of a loop of its own in float64: all tensors but whole counts
    for update in range(1, 6):
        made.update()
        fast = {n: t.double() for n, t in made.state().items() if t.is_floating_point()}
        slow = {n: 0.9 * slow.get(n, t) + (1 - 0.9) * t for n, t in fast.items()}
        before, moments = made.state(), made.moments()
        receipts = hooks.step(updates=update)
        blocks = {b.name: b for b in network.blocks if f"slow/{b.name}" in state}
        assert {b.param.data_ptr() for b in blocks.values()} == {addresses[n] for n in slow}
        for name, block in blocks.items():
            path = ".".join(p for p in (block.path, block.spec.tensor) if p)
            own = block.like(slow[path])
            torch.testing.assert_close(state[f"slow/{name}"].double(), own, rtol=1e-5, atol=1e-6)
        if update < 5:
            assert not receipts
            assert_same(before, made.state())  # it has moved no weight
    [receipt] = receipts
    for name, tensor in made.state().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor.double(), slow[name], rtol=1e-5, atol=1e-6)
        assert made.module.state_dict()[name].data_ptr() == addresses[name]
    for name, slots in made.moments().items():
        assert_same(moments[name], slots)
    assert receipt.sfe > 0
    assert receipt.optimizer_policy == "keep"
    returned = {n: made.state()[n] for n in slow}
    assert_same(returned, {n: target.state_dict()[n] for n in returned})
