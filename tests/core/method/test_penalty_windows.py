"""Penalties with `from` and `until`: which updates have the term, and that others do not."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplast.core.clock import Clock
from rlplast.core.errors import ConfigError
from rlplast.core.method.hooks import Hooks
from rlplast.core.method.penalties import Penalties
from rlplast.run import api
from rlplast.run.build import build
from tests.methods.penalty_cases import moved, row
from tests.models import subject
from tests.runs import Killed, at_step, final
from tests.supervised_runs import small_supervised

# Twelve updates: three epochs of two in phase 0, then three in phase 1.
CLOCKS = [Clock(updates=n, epochs=n // 2, phase=int(n > 6)) for n in range(1, 13)]
END = Clock(updates=12, epochs=6, phase=2)


def windowed(network: Any, method: str = "l2", **window: str) -> Penalties:
    rows = [row(method) | window]
    units = ("updates", "epochs", "phase")
    run = {"total": "12 updates", "units": units, "horizon": END}
    return Penalties(rows, {network.name: network}, **run)


WINDOWS: list[tuple[dict[str, str], range]] = [
    ({"from": "3 updates"}, range(3, 13)),
    ({"until": "3 updates"}, range(1, 4)),
    ({"from": "25%", "until": "50%"}, range(3, 7)),
    ({"from": "phase 1"}, range(7, 13)),
    ({"until": "phase 0"}, range(1, 7)),
    ({"from": "phase 1", "until": "9 updates"}, range(7, 10)),
    ({"from": "1 epochs", "until": "2 epochs"}, range(2, 6)),  # while the counter is 1 or 2
    ({"from": "0%"}, range(1, 13)),
    ({"until": "100%"}, range(1, 13)),
]


def test_term_is_in_the_updates_that_an_every_update_hook_fires_in() -> None:
    for window, updates in WINDOWS:
        network, _ = moved("mlp")
        found = windowed(network, **window)
        open_at = [c.updates for c in CLOCKS if found.of("net", clock=c) is not None]
        assert open_at == list(updates), window
        hook = {"method": "swr", "every": "1 updates"} | window
        hooks = Hooks([hook], network, "12 updates", horizon=END)
        fired = []
        for clock in CLOCKS:
            hooks.after_update(clock)
            fired += [clock.updates] * len(hooks.flush(clock))
        assert fired == list(updates), window


def test_outside_its_window_a_term_is_no_part_of_the_loss_and_counts_as_zero() -> None:
    network, _ = moved("mlp")
    found, always = windowed(network, until="1 updates"), windowed(network)
    loss = torch.ones((), requires_grad=True)
    inside = found.add("net", loss, clock=CLOCKS[0])
    assert torch.equal(inside, always.add("net", loss))
    assert found.add("net", loss, clock=CLOCKS[1]) is loss
    assert found.metrics(2)["train/penalty"] == pytest.approx(float(inside.detach() - 1) / 2)
    assert found.add("net", loss, clock=CLOCKS[2]) is loss
    assert found.metrics(1) == {"train/penalty": 0.0}
    later = windowed(network, **{"from": "2 updates"})
    for clock, logged in ((CLOCKS[0], False), (CLOCKS[1], True)):  # not before it begins
        later.add("net", loss, clock=clock)
        assert bool(later.metrics(1)) is logged


def test_a_closed_row_leaves_the_open_ones() -> None:
    network, _ = moved("mlp")
    rows = [row("l2") | {"from": "2 updates"}, row("parseval")]
    found = Penalties(rows, {"net": network}, total="12 updates")
    alone = Penalties([row("parseval")], {"net": network})
    both = Penalties([row("l2"), row("parseval")], {"net": network})
    assert torch.equal(found.of("net", clock=Clock(updates=1)), alone.of("net"))  # type: ignore[arg-type]
    assert torch.equal(found.of("net", clock=Clock(updates=2)), both.of("net"))  # type: ignore[arg-type]


def test_the_plan_of_a_penalty_runs_outside_its_window_too() -> None:
    made = subject("mlp", updates=0)
    window = {"from": "3 updates", "until": "4 updates"}
    found = Penalties([row("spectral") | window], {"net": made.network}, total="6 updates")
    hooks = Hooks([], made.network, "6 updates", penalties=found)
    moves = []
    for update in range(1, 7):
        made.update()
        before = copy.deepcopy(found.terms[0].state)
        hooks.step(updates=update)
        if any(not torch.equal(before[n], t) for n, t in found.terms[0].state.items()):
            moves.append(update)
    assert moves == list(range(1, 7))


def test_windows_that_can_never_be_open_are_refused() -> None:
    network, _ = moved("mlp")
    for window, message in (
        ({"from": "12 updates"}, r"\(l2\)\.from"),
        ({"from": "phase 2"}, r"\(l2\)\.from"),
        ({"from": "5 updates", "until": "4 updates"}, "until = 4 .*from = 5"),
        ({"until": "0%"}, "never"),
        ({"from": "3 tokens"}, "tokens"),
    ):
        with pytest.raises(ConfigError, match=message):
            windowed(network, **window)
    rows = [row("l2") | {"until": "0 env_steps"}]
    with pytest.raises(ConfigError, match=r"\(l2\)\.until"):
        Penalties(rows, {"net": network}, total="100 env_steps")


def test_a_window_needs_the_length_of_the_run_and_its_clock() -> None:
    network, _ = moved("mlp")
    rows = [row("l2") | {"from": "3 updates"}]
    with pytest.raises(ConfigError, match="from and until"):
        Penalties(rows, {"net": network})
    found = Penalties(rows, {"net": network}, total="12 updates")
    with pytest.raises(ConfigError, match=r"\(l2\).*clock"):
        found.add("net", torch.ones(()))


SECOND_STAGE = [
    {"method": "parseval", "from": "phase 1", "params": {"coef": 1e-2}},
    {"method": "spectral", "from": "phase 1", "until": "20 updates"},
]


def weights_after(steps: int, **changes: Any) -> dict[str, torch.Tensor]:
    trainer: Any = build(api.read_config(small_supervised(**changes)))[0]
    for _ in range(steps):
        trainer.step()
    return copy.deepcopy(trainer.model.state_dict())


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_penalty_from_phase_1_leaves_phase_0_as_it_is_without() -> None:
    # Phase 0 has 12 updates; the start of phase 1 is a step of its own.
    assert equal(weights_after(13, penalties=SECOND_STAGE), weights_after(13, penalties=[]))
    assert not equal(weights_after(14, penalties=SECOND_STAGE), weights_after(14, penalties=[]))
    first = weights_after(14, penalties=[r | {"from": "0%"} for r in SECOND_STAGE])
    assert not equal(weights_after(14, penalties=SECOND_STAGE), first)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own import
def test_a_windowed_penalty_trains_compiled_as_it_does_eager() -> None:
    eager, compiled = (
        weights_after(16, penalties=SECOND_STAGE, accelerate=how) for how in ("off", "compile")
    )
    for name, tensor in eager.items():
        torch.testing.assert_close(compiled[name], tensor, rtol=1e-3, atol=1e-4)


def test_a_run_resumed_anywhere_beside_a_window_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    config = small_supervised(penalties=SECOND_STAGE)

    def kill() -> None:
        raise Killed

    api.train(config, tmp_path / "through")
    expected = final(tmp_path / "through")
    run = tmp_path / "run"
    with pytest.raises(Killed):
        api.train(config, run, observer=at_step(8, kill))
    for count in (5, 7):  # at the start of phase 1; in the window of the second row
        with pytest.raises(Killed):
            api.resume(run, observer=at_step(count, kill))
    api.resume(run)
    assert final(run) == expected
    logged = [r for r in expected["metrics"] if "train/penalty" in r]
    assert all((r["train/penalty"] > 0) == (r["updates"] > 12) for r in logged)
    assert {r["phase"] for r in logged} == {1}
    assert {r["phase"] for r in expected["metrics"] if "train/loss" in r} == {0, 1}
