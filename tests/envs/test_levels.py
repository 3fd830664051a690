"""What an environment hides must not pass as exact."""

import random
import re
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from rlplast import envs
from rlplast.envs import levels
from rlplast.envs.custom import CustomTask
from rlplast.envs.levels import LEVELS
from tests.envs import hiding
from tests.envs.checks import generator


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    before = dict(gymnasium.registry)
    hiding.register()
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def named(kind: Any) -> str:
    return f"gym/{hiding.PREFIX}{kind.__name__}-v0"


def level(kind: Any) -> tuple[str, str]:
    spec = envs.spec(named(kind))
    return spec.resume, spec.resume_reason


@pytest.mark.parametrize("kind", hiding.EXACT)
def test_what_python_shows_is_exact(kind: type) -> None:
    assert level(kind) == ("exact", "")


@pytest.mark.parametrize("kind", hiding.REPLAYED)
def test_what_follows_from_seed_and_actions_is_replayed(kind: type) -> None:
    name, reason = level(kind)
    assert name == "replayed"
    assert reason.startswith("not exact: ")


@pytest.mark.parametrize("kind", hiding.RESTARTED)
def test_what_is_hidden_outside_is_restarted(kind: type) -> None:
    name, reason = level(kind)
    assert name == "restarted"
    assert reason.startswith(("not exact or replayed: ", "not exact: "))
    assert "replayed: " in reason


@pytest.mark.parametrize("kind", hiding.SLIPS_THROUGH)
def test_what_does_not_show_within_the_trial_slips_through(kind: type) -> None:
    assert level(kind)[0] == "exact"  # docs/how-to/bring-an-environment.md says so


def test_reasons_name_the_place() -> None:
    assert level(hiding.CState)[1] == (
        "not exact: CState.hash is a _hashlib:HASH, whose state Python does not show"
    )
    assert level(hiding.Views)[1] == "not exact: Views.row and Views.board are views of one array"
    assert "not exact: after a resume it differs from step" in level(hiding.Forgets)[1]
    assert "leads to another Counts.total than it did" in level(hiding.Counts)[1]
    assert "the actions inside its wrappers: " in level(hiding.with_tuples)[1]


def test_trying_moves_no_global_generator() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = [float(torch.rand(())), random.random(), np.random.random()]
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    for kind in (hiding.GlobalTorch, hiding.GlobalPython, hiding.GlobalNumpy):
        envs.custom._found.clear()  # pyright: ignore[reportAttributeAccessIssue]
        level(kind)
    assert [float(torch.rand(())), random.random(), np.random.random()] == expected


@pytest.mark.parametrize("kind", [hiding.with_tuples, hiding.with_dicts, hiding.Macro])
def test_what_cannot_be_played_again_steps_all_the_same(kind: Any) -> None:
    found = []
    for level_name in LEVELS[1:]:
        options = envs.custom._options(named(kind))  # pyright: ignore[reportAttributeAccessIssue]
        defaults = {key: option.default for key, option in options.items()}
        task = CustomTask(named(kind), generator(0), defaults, level_name)
        first = task.reset()
        found.append([(first.tolist(), 0), *((o.tolist(), r) for o, r, *_ in steps(task))])
    assert found[0] == found[1]


def steps(task: CustomTask) -> Iterator[Any]:
    return (task.step(number % 2) for number in range(9))


def untold(env_id: str, count: int, **options: Any) -> str:
    """Return why an episode of `count` steps does not go on from its state."""
    vector = envs.make_vector(env_id, [generator(0)], **options)
    vector.reset()
    for _ in range(count):
        vector.step(np.array([0]))
    state: Any = vector.state_dict()
    other = envs.make_vector(env_id, [generator(1)], **options)
    other.load_state_dict(state)
    assert vector.restart_reason == other.restart_reason
    assert other.restarts == bool(other.restart_reason)
    return other.restart_reason


def test_what_a_snapshot_cannot_take_later_begins_a_new_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert level(hiding.Lately)[0] == "exact"
    assert untold(named(hiding.Lately), 3) == ""
    monkeypatch.setattr(hiding.Lately, "late", True)
    why = "Lately.hash is a _hashlib:HASH, whose state Python does not show"
    assert untold(named(hiding.Lately), 3) == why


def test_an_episode_that_outgrows_its_replay_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "STEPS", 2)
    env_id = named(hiding.CState)
    assert envs.spec(env_id, longest_replay=6).resume == "replayed"
    assert untold(env_id, 6, longest_replay=6) == ""
    why = "its episode has more than longest_replay = 6 steps"
    assert untold(env_id, 7, longest_replay=6) == why


@pytest.mark.parametrize("longest", [5, 10_000])
def test_an_episode_that_is_too_long_to_replay_is_restarted(longest: int) -> None:
    env_id = f"gym/{hiding.PREFIX}CState-v0"
    vector = envs.make_vector(env_id, [generator(0)], longest_replay=longest)
    vector.reset()
    for _ in range(7):
        vector.step(np.array([0]))
    state: Any = vector.state_dict()
    other = envs.make_vector(env_id, [generator(1)], longest_replay=longest)
    other.reset()
    other.load_state_dict(state)
    assert other.restarts == (longest == 5)
    if other.restarts:
        other.reset()
    assert not other.restarts


class Slow(hiding.Plain):
    """Takes its time."""

    def __init__(self, begins: float = 0.0, steps: float = 0.0, kept: Any = None) -> None:
        self.begins, self.steps, self.kept = begins, steps, kept

    def begin(self) -> None:
        time.sleep(self.begins)

    def hidden(self) -> float:
        time.sleep(self.steps)
        return 0.0


@pytest.mark.parametrize(
    ("begins", "steps", "kept", "expected", "reason"),
    [
        (0.0, 0.002, None, "exact", ""),
        (0.0, 0.06, None, "restarted", "not exact or replayed: trying it out takes longer than"),
        (0.15, 0.0, None, "restarted", "not exact or replayed: trying it out takes longer than"),
        (0.0, 0.06, iter("x"), "restarted", "not exact: Slow.kept is a .*; not replayed: trying"),
    ],
)
def test_a_trial_ends_in_time(
    begins: float,
    steps: float,
    kept: Any,
    expected: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(levels, "LIMIT", 0.8)
    monkeypatch.setattr(levels, "STRETCH", 0.02)
    gymnasium.register("RlplastSlow-v0", Slow)
    kwargs = {"begins": begins, "steps": steps, "kept": kept}
    began = time.monotonic()
    spec = envs.spec("gym/RlplastSlow-v0", kwargs=kwargs)
    assert time.monotonic() < began + 2.5
    assert spec.resume == expected
    assert re.match(reason, spec.resume_reason)
