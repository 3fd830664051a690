"""How environments go on after an interruption: exactly, by playing again, or anew."""

import pickle
import random
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rlplast import envs
from rlplast.envs import levels, registry, workers
from tests.envs import hiding
from tests.envs.checks import generator, through_files


def named(kind: Any) -> str:
    return f"gym/{hiding.PREFIX}{kind.__name__}-v0"


REASONS: dict[Any, str] = {
    hiding.CState: "not exact: CState has no state_dict() and load_state_dict",
    hiding.with_limit: "not exact: its wrapper Limit holds a state",
    hiding.Forgets: "not exact: after a resume it differs from step 1 on",
    hiding.Unsaved: "state_dict() raised KeyError: 'wheel'",
    hiding.Worn: "not replayed: its open episode, played again",
    hiding.GlobalQuiet: "global generator of NumPy",
    hiding.Clock: "with equal seeds and actions it differs from step 0 on",
    hiding.Port: "it cannot be there twice",
    hiding.Refuses: "reset() raised RuntimeError: the episode is not over",
}


def test_the_level_is_what_can_be_kept() -> None:
    levels = {"exact": hiding.EXACT, "replayed": hiding.REPLAYED, "restarted": hiding.RESTARTED}
    for expected, kinds in levels.items():
        for kind in kinds:
            found = envs.find_resume(named(kind))
            assert found.name == expected, (kind, found)
            assert bool(found.reason) == (expected != "exact")
            assert REASONS.get(kind, "") in found.reason
    for length in (10, 25, 50, 100):
        found = envs.find_resume(named(hiding.ForgetsCount), kwargs={"length": length})
        assert found.name == "replayed", (length, found)


def test_running_statistics_of_a_wrapper_are_never_replayed() -> None:
    class PaysLate(hiding.Plain):
        def step(self, action: int) -> Any:
            obs, _, *rest = super().step(action)
            return obs, 0.0, *rest

    made = lambda: gymnasium.wrappers.NormalizeReward(PaysLate())  # noqa: E731
    gymnasium.register("Rare-v0", made, max_episode_steps=40)
    found = envs.find_resume("gym/Rare-v0")
    assert found.name == "restarted" and "running statistics" in found.reason


def test_own_families_are_exact_without_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_level", None)
    for env_id in ("gym/CartPole-v1", "atari/Breakout", "minatar/breakout", "dmc/cheetah-run"):
        assert envs.find_resume(env_id) == envs.Level("exact")


def test_a_trial_counts_steps_never_time(monkeypatch: pytest.MonkeyPatch) -> None:
    old, steps, counts = hiding.Plain.step, [0], []

    def counted(*args: Any) -> Any:
        steps[0] += 1
        return old(*args)

    monkeypatch.setattr(hiding.Plain, "step", counted)
    for seconds in (0.0, 1e5):  # by which a clock jumps at every step
        steps[0] = 0
        for clock in ("time.monotonic", "time.perf_counter"):
            monkeypatch.setattr(clock, lambda seconds=seconds: steps[0] * seconds)
        assert envs.find_resume(named(hiding.CState)).name == "replayed"
        counts.append(steps[0])
    assert counts[0] == counts[1] < 700


def test_a_trial_moves_no_global_generator() -> None:
    def states() -> bytes:
        found = torch.get_rng_state().numpy(), random.getstate(), np.random.get_state()
        return pickle.dumps(found)

    before = states()
    for kind in (hiding.GlobalTorch, hiding.GlobalPython, hiding.GlobalNumpy):
        envs.find_resume(named(kind))
    assert states() == before


def test_a_worker_finds_the_same() -> None:
    assert envs.find_resume(named(hiding.Worn), workers=2) == envs.find_resume(named(hiding.Worn))


ENDS = {
    "hangs": "has not answered for 1 s",
    "halts": "step() raised Stop: the wheel came off",
}


@pytest.mark.parametrize("how", ENDS)
def test_what_ends_a_trial_is_one_line(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Groups(workers.WorkerGroups):
        def call(self, *arguments: Any) -> list[Any]:
            self._timeout = 1 if how == "hangs" else self._timeout  # from its start on
            return super().call(*arguments)

    monkeypatch.setattr(levels, "WorkerGroups", Groups)
    with pytest.raises((envs.WorkerDied, envs.EnvFailed)) as caught:
        envs.find_resume(f"gym/{hiding.PREFIX}{how}-v0", workers=1)
    assert ENDS[how] in str(caught.value) and "\n" not in str(caught.value)


def resumed(env_id: str, level: str, count: int, **options: Any) -> tuple[Any, Any]:
    """Return environments after some steps, and others that their saved state was put into."""
    found = envs.make_vector(env_id, [generator(0), generator(1)], **options)
    found.reset()
    for number in range(count):
        found.step(np.array([number % 2, number % 3 % 2]))
    other = envs.make_vector(env_id, [generator(2), generator(3)], **options)
    other.reset()
    other.load_state_dict(through_files(found.state_dict(level)))
    return found, other


def test_an_episode_longer_than_its_replay_begins_anew() -> None:
    for longest, expected in ((6, ""), (5, "its episode has more than longest_replay = 5 steps")):
        found, other = resumed(named(hiding.CState), "replayed", 6, longest_replay=longest)
        assert found.restart_reason == other.restart_reason == expected
        assert other.restarts == bool(expected)
        if other.restarts:
            other.reset()
        assert not other.restarts
    _, other = resumed(named(hiding.Clock), "restarted", 7)
    assert other.restarts and other.restart_reason == ""


def test_an_episode_that_goes_otherwise_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last observation is as it was: the whole episode is compared."""
    found = envs.make_vector(named(hiding.Plain), [generator(0)])
    found.reset()
    for number in range(5):
        found.step(np.array([number % 2]))
    state = found.state_dict("replayed")
    monkeypatch.setattr(hiding.Plain, "hidden", lambda env: float(env.count == 2))
    other = envs.make_vector(named(hiding.Plain), [generator(0)])
    other.load_state_dict(state)
    assert "for 5 steps, went otherwise" in other.restart_reason
    monkeypatch.setattr(hiding.Plain, "hidden", lambda env: 1 / 0)
    other.load_state_dict(state)
    assert "for 5 steps, raised ZeroDivisionError" in other.restart_reason
