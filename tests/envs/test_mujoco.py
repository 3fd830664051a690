import copy
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlplast import envs
from rlplast.envs import gl, mjdata, mujoco
from tests.envs.checks import (
    assert_continues_after_restore,
    assert_same_states,
    generator,
    play,
    random_actions,
    through_files,
)
from tests.marks import slow_but

TASKS = list(mujoco._TASKS)


def raw_task(task: str) -> Any:
    return gymnasium.make(task, disable_env_checker=True).unwrapped


@pytest.fixture(autouse=True)
def _log_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes MUJOCO_LOG.TXT where it runs


def test_the_table_lists_all_of_gymnasiums_tasks_with_their_sizes() -> None:
    registered = {
        name: record
        for name, record in gymnasium.registry.items()
        if name.endswith("-v5") and "mujoco" in str(record.entry_point)
    }
    assert set(registered) == set(TASKS)
    for name, record in registered.items():
        task, spec = raw_task(name), envs.spec(f"gym/{name}")
        assert spec.obs_shape == task.observation_space.shape
        assert (spec.action_dim,) == task.action_space.shape
        assert spec.max_episode_steps == record.max_episode_steps
        assert spec.num_actions is None and spec.obs_dtype == "float32"


@pytest.mark.parametrize("task", TASKS)
def test_steps_equal_gymnasium_itself_in_its_own_units(task: str) -> None:
    twin = raw_task(task)
    twin.np_random = generator(7)
    env = envs.make(f"gym/{task}", generator(7), max_episode_steps=70)
    np.testing.assert_array_equal(env.reset(), twin.reset()[0].astype(np.float32))
    high = twin.action_space.high
    for action in random_actions(env.spec.id, 120, seed=1):
        obs, reward, terminated, truncated = env.step(action)
        obs_twin, reward_twin, terminated_twin, *_ = twin.step(high * action)
        np.testing.assert_array_equal(obs, obs_twin.astype(np.float32))
        assert (reward, terminated) == (reward_twin, terminated_twin)
        assert env.step_frames == 1
        if terminated or truncated:
            np.testing.assert_array_equal(env.reset(), twin.reset()[0].astype(np.float32))


@pytest.mark.parametrize("task", TASKS)
def test_what_an_episode_changes_beside_mujocos_data_is_listed(task: str) -> None:
    raw = raw_task(task)
    raw.np_random = generator(0)
    ignored = {"data", "_np_random", "mujoco_renderer", "model", "_ezpickle_args"}
    raw.reset()
    before = {name: copy.deepcopy(v) for name, v in vars(raw).items() if name not in ignored}
    model = {name: np.copy(v) for name, v in _model_arrays(raw.model).items()}
    for episode in range(2):
        for _ in range(30):
            raw.step(raw.action_space.high * (1 - 2 * (episode % 2)))
        raw.reset()
    after = {name: value for name, value in vars(raw).items() if name not in ignored}
    changed = {
        name
        for name in before.keys() | after.keys()
        if not np.array_equal(before.get(name), after.get(name))
        if name not in ("action_space", "observation_space")
    }
    assert changed <= set(mujoco._TASKS[task].state_names)
    for name, value in _model_arrays(raw.model).items():
        np.testing.assert_array_equal(value, model[name], err_msg=name)


def _model_arrays(model: Any) -> dict[str, np.ndarray]:
    names = [name for name in dir(model) if not name.startswith("_")]
    return {n: v for n in names if isinstance(v := getattr(model, n), np.ndarray)}


@pytest.mark.parametrize("task", slow_but(["Ant-v5", "Hopper-v5", "Pusher-v5"], TASKS))
def test_restored_tasks_continue_bit_for_bit_from_any_point(task: str) -> None:
    env_id, options = f"gym/{task}", {"max_episode_steps": 50}  # so that all of them end
    env = envs.make(env_id, generator(1), **options)
    actions = random_actions(env_id, 200, seed=2)
    starts: list[np.ndarray] = []  # first observation of every episode
    truth: list[tuple[np.ndarray, float, bool, bool]] = []
    states = {"before the first reset": (0, 0, env.state_dict())}
    starts.append(env.reset())
    states["after the first reset"] = (0, 1, env.state_dict())
    for count, action in enumerate(actions, start=1):
        truth.append(env.step(action))
        if count in (30, 120):
            states[f"after step {count}"] = (count, len(starts), env.state_dict())
        if any(truth[-1][2:]):
            states.setdefault("at an end", (count, len(starts), env.state_dict()))
            starts.append(env.reset())
            states.setdefault("after a reset", (count, len(starts), env.state_dict()))
    assert len(states) == 6

    used = envs.make(env_id, generator(3), **options)
    used.reset()
    play(used, random_actions(env_id, 40, seed=5))
    for begin, episode, state in states.values():
        fresh = envs.make(env_id, generator(6), **options)
        for other in (fresh, used):
            other.load_state_dict(through_files(state))
            assert_same_states(other.state_dict(), state)
            _assert_goes_on(other, actions[begin:], truth[begin : begin + 80], starts[episode:])


def _assert_goes_on(env: Any, actions: Any, truth: list[Any], starts: list[np.ndarray]) -> None:
    """The episode goes on, or starts, as in the uninterrupted run; then so do the next ones."""
    starts = list(starts)
    if not env.state_dict()["running"]:
        np.testing.assert_array_equal(env.reset(), starts.pop(0))
    for action, (obs, *rest) in zip(actions, truth, strict=False):
        ours, *our_rest = env.step(action)
        np.testing.assert_array_equal(ours, obs)
        assert our_rest == rest
        if any(rest[1:]):
            np.testing.assert_array_equal(env.reset(), starts.pop(0))


def test_an_uninterrupted_run_and_a_restored_one_agree() -> None:
    options = {"max_episode_steps": 60, "action_repeat": 2}
    assert_continues_after_restore("gym/Hopper-v5", 101, 200, min_ends=3, used=True, **options)


def test_arrays_that_lag_behind_the_positions_are_stored_and_not_recomputed() -> None:
    # Ant's reward reads xpos as the last step left it: where the body was before that step moved.
    env = envs.make("gym/Ant-v5", generator(0))
    env.reset()
    raw = env._simulator._task._task  # type: ignore[attr-defined]
    for action in random_actions("gym/Ant-v5", 3, seed=0):
        env.step(action)
    state, lagged = env.state_dict(), raw.data.xpos.copy()
    raw.set_state(raw.data.qpos.copy(), raw.data.qvel.copy())  # recomputes them
    assert not np.array_equal(raw.data.xpos, lagged)
    env.load_state_dict(state)
    np.testing.assert_array_equal(raw.data.xpos, lagged)


def test_time_flags_and_warnings_are_restored() -> None:
    env, other = (envs.make("gym/Hopper-v5", generator(0)) for _ in range(2))
    ours, theirs = (e._simulator._task._task.data for e in (env, other))  # type: ignore[attr-defined]
    env.reset()
    ours.qvel[:] = 1e20  # MuJoCo warns, resets the simulation and goes on
    with mjdata.quiet(pytest.importorskip("mujoco")):
        env.step(np.zeros(3, np.float32))
    other.load_state_dict(env.state_dict())
    assert ours.warning.number.any() and ours.time > 0 and ours.flg_rnepost
    assert (theirs.time, theirs.flg_rnepost) == (ours.time, ours.flg_rnepost)
    np.testing.assert_array_equal(theirs.warning.number, ours.warning.number)
    np.testing.assert_array_equal(theirs.warning.lastinfo, ours.warning.lastinfo)


def test_every_array_of_the_buffer_is_stored() -> None:
    for task in TASKS:
        data = raw_task(task).data
        stored = mjdata.MjDataState(data)._arrays
        # What is not stored is the padding between the arrays, each aligned to 64 bytes.
        padding = data.nbuffer - sum(array.nbytes for array in stored.values())
        assert 0 <= padding + data.energy.nbytes < 64 * (len(stored) + 1)
        assert {"qpos", "qvel", "qacc_warmstart", "cfrc_ext", "cinert", "ctrl"} <= stored.keys()


def test_a_state_of_another_task_is_refused() -> None:
    hopper, walker = (envs.make(f"gym/{t}", generator(0)) for t in ("Hopper-v5", "Walker2d-v5"))
    state = hopper.state_dict() | {"id": "gym/Walker2d-v5"}
    with pytest.raises(ValueError, match="another model, or was taken with another version"):
        walker.load_state_dict(state)


def test_building_a_task_prints_nothing_and_writes_no_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    envs.make("gym/HalfCheetah-v5", generator(0))
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def _can_draw() -> bool:
    gl.choose_gl()
    return bool(os.environ.get("MUJOCO_GL"))


@pytest.mark.skipif(not _can_draw(), reason="no OpenGL library that works without a display")
def test_pictures_show_the_state_and_change_nothing() -> None:
    env, twin = (envs.make("gym/Hopper-v5", generator(0)) for _ in range(2))
    other = envs.make("gym/Reacher-v5", generator(0))  # another OpenGL context of this process
    for each in (env, twin, other):
        each.reset()
    first = env.render()
    assert first.shape == (480, 480, 3) and first.dtype == np.uint8 and first.std() > 10
    before = env.state_dict()
    assert (other.render() != first).any()
    np.testing.assert_array_equal(env.render(), first)
    assert_same_states(env.state_dict(), before)
    for action in random_actions("gym/Hopper-v5", 2, seed=0):
        np.testing.assert_array_equal(env.step(action)[0], twin.step(action)[0])
    assert (env.render() != first).any()
    env.close()
    other.close()


def test_without_opengl_the_error_names_debians_package(monkeypatch: pytest.MonkeyPatch) -> None:
    env = envs.make("gym/Hopper-v5", generator(0))
    env.reset()
    task = env._simulator._task._task  # type: ignore[attr-defined]

    def fail(mode: str) -> None:
        raise ImportError("no such library")

    monkeypatch.setattr(task.mujoco_renderer, "render", fail)
    for value, packages in (("egl", "libegl1"), ("osmesa", "libosmesa6"), ("", "libegl1 .* or ")):
        monkeypatch.setenv("MUJOCO_GL", value)
        monkeypatch.setenv("DISPLAY", ":0")
        with pytest.raises(envs.MissingPackage, match=f"no such library.*: install .*{packages}"):
            env.render()


@pytest.mark.parametrize(
    ("given", "libraries", "chosen"),
    [
        ({}, {"EGL", "OSMesa"}, "egl"),
        ({}, {"OSMesa"}, "osmesa"),
        ({}, set(), None),
        ({"MUJOCO_GL": "osmesa"}, {"EGL"}, "osmesa"),
        ({"DISPLAY": ":1"}, {"EGL"}, None),
        ({"WAYLAND_DISPLAY": "w"}, {"EGL"}, None),
    ],
)
def test_opengl_is_chosen_only_where_nothing_says_which(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], libraries: set[str], chosen: str | None
) -> None:
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gl.ctypes.util, "find_library", lambda name: name in libraries or None)
    monkeypatch.setattr(gl.sys, "platform", "linux")
    gl.choose_gl()
    assert os.environ.get("MUJOCO_GL") == chosen
