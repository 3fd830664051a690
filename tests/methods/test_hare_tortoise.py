"""Hare & Tortoise: closed forms of the average, the return to it, and what evaluations see."""

import copy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rlplast
from rlplast.core.clock import Clock, Time
from rlplast.core.errors import ConfigError
from rlplast.core.method.schedule import Schedule
from rlplast.core.network.network import Network
from rlplast.run import api
from rlplast.training import checkpoint
from tests.cli.commands import command
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


# --- the average ----------------------------------------------------------------------------


@torch.no_grad()
def test_the_slow_copy_of_constant_weights_goes_to_them_as_a_power_of_the_momentum() -> None:
    module = nn.Linear(3, 2)
    network = Network("net", module)
    hooks = hooks_on(network, momentum=0.9)
    start = tensors(module)
    hooks.step(updates=1)  # the slow copy begins here
    for p in module.parameters():
        p.fill_(2.5)
    for n in range(1, 31):
        hooks.step(updates=1 + n)
        for name, value in start.items():
            slow = hooks.hooks[0].states["net"][f"slow/{name}"]
            expected = 2.5 + 0.9**n * (value - 2.5)
            torch.testing.assert_close(slow, expected, rtol=1e-5, atol=1e-6)


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


def test_a_slow_copy_of_bf16_weights_is_kept_in_float32() -> None:
    module = nn.Linear(3, 2).to(torch.bfloat16)
    hooks = hooks_on(Network("net", module))
    hooks.step(updates=1)
    with torch.no_grad():
        module.weight.fill_(1.0)
    before = hooks.hooks[0].states["net"]["slow/weight"].clone()
    hooks.step(updates=2)  # a step of 1/1000, which bf16 would not see
    moved = hooks.hooks[0].states["net"]["slow/weight"] - before
    torch.testing.assert_close(moved, (1 - before) / 1000, rtol=1e-3, atol=1e-7)


def test_a_frozen_layer_and_a_layer_out_of_scope_have_no_copy() -> None:
    module = nn.Sequential(nn.Conv1d(2, 2, 1), nn.Linear(3, 2), nn.Linear(2, 2))
    module[1].requires_grad_(False)
    hooks = rlplast.Hooks([row(scope="sac")], Network("net", module), "100 updates")
    names = {n for n in hooks.hooks[0].states["net"] if n.startswith("slow/")}
    assert names == {"slow/2.weight", "slow/2.bias"}


# --- the return -------------------------------------------------------------------------------


@pytest.mark.parametrize("net", ["mlp", "conv_batchnorm", "stacked"])
def test_the_weights_return_to_the_slow_copy_in_place_and_moments_stay(net: str) -> None:
    made = Trained(net)
    hooks = hooks_on(made.network, "5 updates", momentum=0.9)
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
    assert (receipt.optimizer_policy, receipt.followers) == ("keep", {})


def test_after_a_return_the_slow_copy_differs_from_the_weights_by_momentum_times_the_step() -> None:
    made = Trained("mlp")
    hooks = hooks_on(made.network, "5 updates", momentum=0.9)
    for update in range(1, 6):
        made.update()
        hooks.step(updates=update)
    returned = made.state()
    made.update()
    hooks.step(updates=6)
    slow = hooks.hooks[0].states["net"]
    for name, fast in made.state().items():
        step = fast - returned[name]
        assert step.abs().max() > 0
        torch.testing.assert_close(fast - slow[f"slow/{name}"], 0.9 * step, rtol=1e-4, atol=1e-7)


def test_a_target_that_gets_the_same_edit_gets_the_slow_copy() -> None:
    made = Trained("mlp")
    target = copy.deepcopy(made.module).requires_grad_(False)
    network = Network("net", made.module, made.optimizer, target)
    config = row("3 updates", followers="same_edit", params={"momentum": 0.5})
    hooks = rlplast.Hooks([config], network, "100 updates")
    for update in range(1, 4):
        made.update()
        hooks.step(updates=update)
    assert_same(made.state(), tensors(target))


def test_before_the_first_update_nothing_is_returned_to() -> None:
    made = Trained("mlp").train(2)
    config = {"method": "hare_tortoise", "at": "0%"}
    hooks = rlplast.Hooks([config], made.network, "100 updates")
    before = made.state()
    [receipt] = hooks.step(updates=0)
    assert receipt.sfe == receipt.entries_touched == 0
    assert_same(before, made.state())
    assert not hooks.evaluation()


def test_a_period_that_is_never_reached_changes_no_weight() -> None:
    plain, hooked = Trained("conv_batchnorm"), Trained("conv_batchnorm")
    hooks = hooks_on(hooked.network)
    for update in range(1, 9):
        plain.update()
        hooked.update()
        hooks.step(updates=update)
        with hooks.evaluating():
            pass
    assert_same(plain.state(), hooked.state())
    assert not hooks.flush()


# --- what evaluations see ---------------------------------------------------------------------


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


def test_evaluations_of_a_network_with_masters_use_the_slow_copy_in_low_precision() -> None:
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


def test_two_hooks_that_name_evaluation_weights_of_one_network_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hooks\[1\].* and hooks\[0\].* both name the weights"):
        rlplast.Hooks([row(), row("7 updates")], Trained("mlp").network, "100 updates")


def test_a_loop_that_does_not_count_updates_is_refused() -> None:
    config = {"method": "hare_tortoise", "every": "2 epochs"}
    hooks = rlplast.Hooks([config], Trained("mlp").network, "10 epochs")
    with pytest.raises(ConfigError, match="lacks updates"):
        hooks.step(epochs=1)


# --- when the code of the paper returns -----------------------------------------------------------


def of_its_trainer(tasks: list[int], every: int) -> list[int]:
    """The epochs after which its trainer resets, counted over all tasks: a plain loop."""
    done, found = 0, []
    for epochs in tasks:
        for epoch in range(epochs):
            done += 1
            if epoch % every == 0:
                found.append(done)
    return found


@pytest.mark.parametrize(
    ("tasks", "every"), [([1000, 100], 10), ([100] * 10, 10), ([100] * 20, 25), ([4, 2, 6], 2)]
)
def test_returns_are_those_of_its_trainer_where_tasks_last_whole_periods(
    tasks: list[int], every: int
) -> None:
    schedule = Schedule.parse(
        {"every": f"{every} epochs", "first": "1 epochs"}, Time(sum(tasks), "epochs")
    )
    clocks = [Clock(epochs=n) for n in range(sum(tasks) + 1)]
    due = [now.epochs for then, now in pairwise(clocks) if schedule.crossings(then, now)]
    assert due == of_its_trainer(tasks, every)


def test_a_run_returns_after_the_epochs_of_its_trainer(tmp_path: Path) -> None:
    stream = {"name": "warm_start", "fraction": 0.5, "epochs": [4, 2]}
    hooks = [row("2 epochs", first="1 epochs")]
    api.train(small_supervised(stream=stream, hooks=hooks), tmp_path / "run")
    receipts = api.load(tmp_path / "run").lines("receipts")
    found = [r["clock"]["epochs"] for r in receipts if r["method"] == "hare_tortoise"]
    assert found == of_its_trainer([4, 2], 2)


# --- whole runs ---------------------------------------------------------------------------------

SHORT = TINY | {"hooks": [row("10 updates", params={"momentum": 0.9})]}


def slow_of(run: Path) -> dict[str, Tensor]:
    _, state = checkpoint.load(sorted((run / "checkpoints").glob("step-*"), key=_number)[-1])
    [saved] = [v["states"]["q"] for k, v in state["hooks"].items() if k.startswith("hare_tortoise")]
    return {n.removeprefix("slow/"): t for n, t in saved.items() if n.startswith("slow/")}


def _number(path: Path) -> int:
    return int(path.name.split("-")[1])


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


def test_a_file_of_weights_has_no_updates_to_follow(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "in.pt")
    outcome = command("apply", "hare_tortoise", tmp_path / "in.pt", "--out", tmp_path / "out.pt")
    assert outcome.code == 2
    assert "hare_tortoise needs a network that trains, which a file of" in outcome.err


def test_the_average_agrees_eager_and_compiled() -> None:
    torch._dynamo.reset()
    states = []
    for compiled in (False, True):
        made = Trained("conv_batchnorm")
        hook = hooks_on(made.network, momentum=0.9).hooks[0]
        follow = torch.compile(hook.follow, backend="aot_eager", fullgraph=True)
        for _ in range(3):
            made.update()
            (follow if compiled else hook.follow)(rlplast.Clock(updates=1), 0)
        states.append(hook.states["net"])
    torch._dynamo.reset()
    assert int(states[0]["updates"]) == 3
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-6, atol=1e-7, msg=name)


def test_the_average_waits_for_no_device() -> None:
    made = Trained("conv_batchnorm")
    hook = hooks_on(made.network).hooks[0]
    with host_reads() as found:
        for update in range(1, 4):
            hook.follow(rlplast.Clock(updates=update), 0)
    assert found == []
