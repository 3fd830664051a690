"""Hare & Tortoise: closed forms of the average, the return to it, and what evaluations see."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.errors import ConfigError
from rlplast.core.network.network import Network
from rlplast.run import api
from rlplast.training import checkpoint
from tests.methods.unit_nets import NETS, Trained
from tests.models import assert_same
from tests.runs import TINY
from tests.supervised_runs import small_supervised
from tests.syncs import host_reads

NEVER = "99 updates"


def row(every: str = NEVER, **more: Any) -> dict[str, Any]:
    return {"method": "hare_tortoise", "every": every, **more}


def hooks_on(network: Network, every: str = NEVER, **params: Any) -> rlplast.Hooks:
    return rlplast.Hooks([row(every, params=params)], network, "100 updates")


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in module.state_dict().items()}


def follow(made: Trained, momentum: float, updates: int) -> list[dict[str, Tensor]]:
    """The slow copies of a loop of its own in float64: all tensors but whole counts."""
    slow: dict[str, Tensor] = {}
    found = []
    for _ in range(updates):
        made.update()
        fast = {n: t.double() for n, t in tensors(made.module).items() if t.is_floating_point()}
        slow = {n: momentum * slow.get(n, t) + (1 - momentum) * t for n, t in fast.items()}
        found.append(slow)
    return found


@pytest.mark.parametrize("net", NETS)
def test_weights_and_running_statistics_are_averaged(net: str) -> None:
    made = Trained(net)
    expected = follow(Trained(net), 0.9, 8)
    hooks = hooks_on(made.network, momentum=0.9)
    state = hooks.hooks[0].states["net"]
    for update in range(1, 9):
        made.update()
        hooks.step(updates=update)
        blocks = {b.name: b for b in made.network.blocks if f"slow/{b.name}" in state}
        assert {b.param.data_ptr() for b in blocks.values()} == {
            t.data_ptr() for t in made.module.state_dict().values() if t.is_floating_point()
        }
        for name, block in blocks.items():
            path = ".".join(p for p in (block.path, block.spec.tensor) if p)
            own = block.like(expected[update - 1][path])
            torch.testing.assert_close(state[f"slow/{name}"].double(), own, rtol=1e-5, atol=1e-6)
    assert not hooks.flush()
    assert_same(Trained(net).train(8).state(), made.state())  # it has moved no weight


def test_a_frozen_layer_and_a_layer_out_of_scope_have_no_copy() -> None:
    module = nn.Sequential(nn.Conv1d(2, 2, 1), nn.Linear(3, 2), nn.Linear(2, 2))
    module[1].requires_grad_(False)
    hooks = rlplast.Hooks([row(scope="sac")], Network("net", module), "100 updates")
    names = {n for n in hooks.hooks[0].states["net"] if n.startswith("slow/")}
    assert names == {"slow/2.weight", "slow/2.bias"}


@pytest.mark.parametrize("net", ["mlp", "conv_batchnorm", "stacked"])
def test_the_weights_return_to_the_slow_copy_in_place_and_moments_stay(net: str) -> None:
    made = Trained(net)
    target = copy.deepcopy(made.module).requires_grad_(False)
    network = Network("net", made.module, made.optimizer, target)
    config = row("5 updates", followers="same_edit", params={"momentum": 0.9})
    hooks = rlplast.Hooks([config], network, "100 updates")
    addresses = {n: t.data_ptr() for n, t in made.module.state_dict().items()}
    expected = follow(Trained(net), 0.9, 5)[-1]
    for update in range(1, 5):
        made.update()
        assert not hooks.step(updates=update)
    made.update()
    moments = made.moments()
    [receipt] = hooks.step(updates=5)
    for name, tensor in made.state().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-6)
        assert made.module.state_dict()[name].data_ptr() == addresses[name]
    for name, slots in made.moments().items():
        assert_same(moments[name], slots)
    assert receipt.sfe > 0
    assert receipt.optimizer_policy == "keep"
    returned = {n: t for n, t in made.state().items() if t.is_floating_point()}
    assert_same(returned, {n: target.state_dict()[n] for n in returned})


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

    low = nn.Linear(3, 2).to(torch.bfloat16)
    masters = {p: p.detach().float().requires_grad_() for p in low.parameters()}
    network = Network("net", low, torch.optim.SGD(masters.values(), lr=0.1), masters=masters)
    hooks = hooks_on(network, momentum=0.5)
    hooks.step(updates=1)
    first = low.weight.detach().clone()
    with torch.no_grad():
        for param, master in masters.items():
            master += 1
            param += 1
    hooks.step(updates=2)
    with hooks.evaluating():
        torch.testing.assert_close(low.weight, first + 0.5, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(low.weight, first + 1, rtol=1e-2, atol=1e-2)


def test_a_run_returns_after_the_epochs_of_its_trainer(tmp_path: Path) -> None:
    stream = {"name": "warm_start", "fraction": 0.5, "epochs": [4, 2]}
    hooks = [row("2 epochs", first="1 epochs")]
    api.train(small_supervised(stream=stream, hooks=hooks), tmp_path / "run")
    receipts = api.load(tmp_path / "run").lines("receipts")
    found = [r["clock"]["epochs"] for r in receipts if r["method"] == "hare_tortoise"]
    assert found == [1, 3, 5]  # whose loop resets where `epoch % every == 0` of a task


SHORT = TINY | {"hooks": [row("10 updates", params={"momentum": 0.9})]}


def slow_of(run: Path) -> dict[str, Tensor]:
    last = max((run / "checkpoints").glob("step-*"), key=lambda p: int(p.name.split("-")[1]))
    _, state = checkpoint.load(last)
    [saved] = [v["states"]["q"] for k, v in state["hooks"].items() if k.startswith("hare_tortoise")]
    return {n.removeprefix("slow/"): t for n, t in saved.items() if n.startswith("slow/")}


def test_a_run_is_evaluated_with_its_slow_copy_while_it_trains_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlplast.agents.dqn import DQN

    seen: list[tuple[dict[str, Tensor], Any]] = []
    play: Callable[..., Any] = DQN.play

    def spied(agent: Any, *args: Any, **options: Any) -> Any:
        seen.append((tensors(agent.online), agent))
        return play(agent, *args, **options)

    monkeypatch.setattr(DQN, "play", spied)
    run = api.train(SHORT, tmp_path / "run")
    slow = slow_of(run.path)
    weights, trained = seen[-1]  # the evaluation at the end
    assert_same(slow, weights)
    assert not torch.equal(next(iter(slow.values())), next(iter(tensors(trained.online).values())))
    for opened in (api.load(run.path), api.load(run.path)):
        opened.evaluate(episodes=2)
        assert_same(slow, seen[-1][0])
        assert_same(slow, tensors(opened.agent().online))


def test_the_average_agrees_eager_and_compiled() -> None:
    torch._dynamo.reset()
    states = []
    for compiled in (False, True):
        made = Trained("conv_batchnorm")
        hook = hooks_on(made.network, momentum=0.9).hooks[0]
        follow = torch.compile(hook.follow, backend="aot_eager", fullgraph=True)
        for _ in range(3):
            made.update()
            with nullcontext([]) if compiled else host_reads() as found:
                (follow if compiled else hook.follow)(rlplast.Clock(updates=1), 0)
            assert found == []
        states.append(hook.states["net"])
    torch._dynamo.reset()
    assert int(states[0]["updates"]) == 3
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-6, atol=1e-7, msg=name)
