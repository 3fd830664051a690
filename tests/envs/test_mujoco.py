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
    assert_steps_equal_gymnasium,
    generator,
    random_actions,
)
from tests.marks import slow_but

TASKS = [env_id.removeprefix("gym/") for env_id in mujoco.FAMILY.ids]


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
    assert sum(assert_steps_equal_gymnasium(task, 120, max_episode_steps=70))


def _model_arrays(model: Any) -> dict[str, np.ndarray]:
    names = [name for name in dir(model) if not name.startswith("_")]
    return {n: np.copy(v) for n in names if isinstance(v := getattr(model, n), np.ndarray)}


@pytest.mark.parametrize("task", TASKS)
def test_what_an_episode_changes_beside_mujocos_data_is_listed(task: str) -> None:
    raw = raw_task(task)
    raw.np_random = generator(0)
    ignored = {"data", "_np_random", "mujoco_renderer", "model", "_ezpickle_args"}
    ignored |= {"action_space", "observation_space"}
    raw.reset()
    before = copy.deepcopy({k: v for k, v in vars(raw).items() if k not in ignored})
    arrays = _model_arrays(raw.model)
    for sign in (1, -1):
        for _ in range(30):
            raw.step(raw.action_space.high * sign)
        raw.reset()
    after = {k: v for k, v in vars(raw).items() if k not in ignored}
    names = before.keys() | after.keys()
    changed = {k for k in names if not np.array_equal(before.get(k), after.get(k))}
    assert changed <= set(mujoco._TASKS[f"gym/{task}"].state_names)
    assert_same_states(_model_arrays(raw.model), arrays)


@pytest.mark.parametrize("task", slow_but(["Ant-v5", "Pusher-v5"], TASKS))
def test_restored_tasks_continue_bit_for_bit_from_any_point(task: str) -> None:
    assert_continues_after_restore(f"gym/{task}", 30, 80, 1, max_episode_steps=50)


def test_time_flags_and_warnings_are_restored() -> None:
    env, other = (envs.make("gym/Hopper-v5", generator(0)) for _ in range(2))
    ours, theirs = (e.simulator.task._task.data for e in (env, other))  # type: ignore[attr-defined]
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
    with pytest.raises(ValueError, match="another model"):
        walker.load_state_dict(state)


def test_building_a_task_prints_nothing_and_writes_no_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    envs.make("gym/HalfCheetah-v5", generator(0))
    assert capfd.readouterr() == ("", "") and list(tmp_path.iterdir()) == []


def _can_draw() -> bool:
    gl.choose_gl()
    return bool(os.environ.get("MUJOCO_GL"))


@pytest.mark.skipif(not _can_draw(), reason="no OpenGL library that works without a display")
def test_pictures_show_the_state_and_change_nothing() -> None:
    env, twin = (envs.make("gym/Hopper-v5", generator(0)) for _ in range(2))
    other = envs.make("gym/Reacher-v5", generator(0))  # another OpenGL context of this process
    for each in (env, twin, other):
        each.reset()
    first, before = env.render(), env.state_dict()
    assert first.shape == (480, 480, 3) and first.dtype == np.uint8 and first.std() > 10
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
    task = env.simulator.task._task  # type: ignore[attr-defined]

    def fail(mode: str) -> None:
        raise ImportError("no such library")

    monkeypatch.setattr(task.mujoco_renderer, "render", fail)
    monkeypatch.setenv("DISPLAY", ":0")
    for value, package in (("egl", "libegl1"), ("osmesa", "libosmesa6"), ("", "libegl1 .* or ")):
        monkeypatch.setenv("MUJOCO_GL", value)
        with pytest.raises(envs.MissingPackage, match=f"no such library.*{package}"):
            env.render()


def test_opengl_is_chosen_only_where_nothing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gl.sys, "platform", "linux")
    for given, libraries, chosen in (
        ({}, {"EGL", "OSMesa"}, "egl"),
        ({}, {"OSMesa"}, "osmesa"),
        ({}, set(), None),
        ({"MUJOCO_GL": "osmesa"}, {"EGL"}, "osmesa"),
        ({"DISPLAY": ":1"}, {"EGL"}, None),
        ({"WAYLAND_DISPLAY": "w"}, {"EGL"}, None),
    ):
        for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(name, raising=False)
            if name in given:
                monkeypatch.setenv(name, given[name])
        found = dict.fromkeys(libraries, "lib").get
        monkeypatch.setattr(gl.ctypes.util, "find_library", found)
        gl.choose_gl()
        assert os.environ.get("MUJOCO_GL") == chosen, (given, libraries)
