"""How environments go on after an interruption: exactly, by playing again, or anew."""

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch

from rlplast import envs
from rlplast.envs import registry
from tests.envs import hiding
from tests.envs.checks import generator, through_files
from tests.marks import slow

TIMEOUT = 15.0


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    before = dict(gymnasium.registry)
    hiding.register()
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def named(kind: Any) -> str:
    return f"gym/{hiding.PREFIX}{kind.__name__}-v0"


EXPECTED = [
    *((kind, "exact") for kind in hiding.EXACT),
    *((kind, "replayed") for kind in hiding.REPLAYED),
    *((kind, "restarted") for kind in hiding.RESTARTED),
    (hiding.Late, "replayed"),  # it does not show within the trial: the docs say so
]


@pytest.mark.parametrize(("kind", "expected"), EXPECTED, ids=lambda x: getattr(x, "__name__", x))
def test_the_level_is_what_can_be_kept(kind: Any, expected: str) -> None:
    found = envs.find_resume(named(kind))
    assert found.name == expected, found
    assert bool(found.reason) == (expected != "exact")


@pytest.mark.parametrize("length", [10, 20, 25, 40, 50, 100, 200])
def test_a_state_without_the_count_of_steps_is_not_exact(length: int) -> None:
    found = envs.find_resume(named(hiding.ForgetsCount), kwargs={"length": length})
    assert found.name == "replayed", found


class Rare(hiding.Plain):
    """Pays later than the trial looks."""

    def step(self, action: int) -> Any:
        obs, _, *rest = super().step(action)
        return obs, 0.0, *rest


def test_running_statistics_of_a_wrapper_are_never_replayed() -> None:
    gymnasium.register(
        "Rare-v0", lambda: gymnasium.wrappers.NormalizeReward(Rare()), max_episode_steps=40
    )
    found = envs.find_resume("gym/Rare-v0")
    assert found.name == "restarted"
    assert "running statistics of its wrappers go on over episodes" in found.reason


LACKS = "has no state_dict() and load_state_dict(state)"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (hiding.CState, f"not exact: CState {LACKS}"),
        (hiding.with_limit, f"not exact: its wrapper Limit holds a state, and {LACKS}"),
        (hiding.Forgets, "not exact: after a resume it differs from step 1 on"),
        (hiding.Unsaved, "state_dict() raised KeyError: 'wheel'; mend the environment"),
        (hiding.Worn, "not replayed: its open episode, played again"),
        (hiding.GlobalQuiet, "not exact or replayed: it draws from the global generator of NumPy"),
        (
            hiding.Clock,
            "with equal seeds and actions it differs from step 0 on, so runs of one seed differ",
        ),
        (hiding.Port, "it cannot be there twice"),
        (hiding.Port, "as evaluations need (evaluate.every: null)"),
        (hiding.Refuses, "reset() raised RuntimeError: the episode is not over; mend"),
    ],
)
def test_reasons_say_why(kind: Any, reason: str) -> None:
    assert reason in envs.find_resume(named(kind)).reason


def test_own_families_are_exact_without_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_level", None)
    for env_id in ("gym/CartPole-v1", "atari/Breakout", "minatar/breakout", "dmc/cheetah-run"):
        assert envs.find_resume(env_id) == envs.Level("exact")


class Counted(hiding.CState):
    """Counts the steps of all of its kind; a clock jumps meanwhile."""

    steps: ClassVar[int] = 0
    seconds_a_step: ClassVar[float] = 0.0

    def step(self, action: int) -> Any:
        type(self).steps += 1
        return super().step(action)

    @classmethod
    def clock(cls) -> float:
        return cls.steps * cls.seconds_a_step


def test_a_trial_counts_steps_never_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gymnasium.register("RlplastCounted-v0", Counted)
    counts = []
    for seconds in (0.0, 1e5):
        monkeypatch.setattr(Counted, "steps", 0)
        monkeypatch.setattr(Counted, "seconds_a_step", seconds)
        monkeypatch.setattr("time.monotonic", Counted.clock)
        monkeypatch.setattr("time.perf_counter", Counted.clock)
        assert envs.find_resume("gym/RlplastCounted-v0").name == "replayed"
        counts.append(Counted.steps)
    assert counts[0] == counts[1] < 700


def test_a_trial_moves_no_global_generator() -> None:
    def seed() -> None:
        torch.manual_seed(1), random.seed(1), np.random.seed(1)

    def draws() -> list[float]:
        return [float(torch.rand(())), random.random(), np.random.random()]

    seed()
    expected = draws()
    seed()
    for kind in (hiding.GlobalTorch, hiding.GlobalPython, hiding.GlobalNumpy):
        envs.find_resume(named(kind))
    assert draws() == expected


@pytest.mark.parametrize("kind", [hiding.Saved, hiding.Worn])
def test_a_worker_finds_the_same(kind: Any) -> None:
    assert envs.find_resume(named(kind), workers=2) == envs.find_resume(named(kind))


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("exits", "ended with exit code 0"),
        ("crashes", "ended with exit code -11"),
        slow("hangs", "has not answered for 15 s and was ended"),
        ("leaves", "step() raised SystemExit: the wheel came off; mend the environment"),
        ("halts", "step() raised Stop: the wheel came off; mend the environment"),
    ],
)
def test_what_ends_a_trial_is_one_line(how: str, says: str) -> None:
    with pytest.raises((envs.WorkerDied, envs.EnvFailed)) as caught:
        envs.find_resume(f"gym/{hiding.PREFIX}{how}-v0", workers=1, timeout=TIMEOUT)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["leaves", "halts"])
def test_what_ends_a_trial_here_is_one_line_too(how: str) -> None:
    with pytest.raises(envs.EnvFailed, match="the wheel came off; mend the environment"):
        envs.find_resume(f"gym/{hiding.PREFIX}{how}-v0")


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


@pytest.mark.parametrize(
    "kind", [hiding.CState, hiding.with_pairs, hiding.with_frames, hiding.Macro, hiding.ReadOnly]
)
@pytest.mark.parametrize("count", [0, 7, 61])
def test_what_is_played_again_goes_on_bit_for_bit(kind: Any, count: int) -> None:
    found, other = resumed(named(kind), "replayed", count)
    assert not other.restarts and not other.restart_reason
    for number in range(90):
        one, two = (env.step(np.array([number % 2, 1])) for env in (found, other))
        for name, value in vars(one).items():
            np.testing.assert_array_equal(getattr(two, name), value, err_msg=name)


def test_an_episode_longer_than_its_replay_begins_anew() -> None:
    for longest, expected in ((6, ""), (5, "its episode has more than longest_replay = 5 steps")):
        found, other = resumed(named(hiding.CState), "replayed", 6, longest_replay=longest)
        assert found.restart_reason == other.restart_reason == expected
        assert other.restarts == bool(expected)
        if other.restarts:
            other.reset()
        assert not other.restarts


def test_what_is_restarted_says_nothing() -> None:
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
    assert "played again for 5 steps, went otherwise than it did" in other.restart_reason
    monkeypatch.setattr(hiding.Plain, "hidden", lambda env: 1 / 0)
    other.load_state_dict(state)
    assert "played again for 5 steps, raised ZeroDivisionError" in other.restart_reason


def test_a_trial_sees_what_wears() -> None:
    """Box2D's worlds depend on earlier episodes."""
    pytest.importorskip("Box2D")
    assert envs.find_resume("gym/BipedalWalker-v3").name == "restarted"
