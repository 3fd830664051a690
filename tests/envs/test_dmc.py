import ctypes.util
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from rlplast import envs
from rlplast.envs import dmc
from tests.envs.checks import (
    assert_continues_after_restore,
    assert_same_states,
    generator,
    random_actions,
    through_files,
)
from tests.marks import slow, slow_but

pytest.importorskip("dm_control")  # not there on Python 3.13
suite: Any = dmc._import_suite()
ALL = [f"dmc/{domain}-{task}" for domain, task in suite.ALL_TASKS]

# One for each kind of state there is beside the simulation's, and one of contacts alone.
FAST = [
    f"dmc/{name}"
    for name in (
        "cheetah-run finger-turn_hard lqr-lqr_6_2 manipulator-insert_peg quadruped-walk "
        "reacher-hard"
    ).split()
]
LAST = {env_id.partition("-")[0]: env_id for env_id in ALL}  # a task of each domain
EVERY_DOMAIN = slow_but(FAST, [x for x in ALL if x in FAST or x in LAST.values()])
LIMIT = 15


def make(env_id: str, seed: int, **options: Any) -> envs.Env:
    return envs.make(env_id, generator(seed), **{"max_episode_steps": LIMIT, **options})


def inside(env: envs.Env) -> dmc.DmcTask:
    return env.simulator.task  # type: ignore[attr-defined]


def load_twin(env_id: str, random: Any) -> Any:
    domain, _, task = env_id.removeprefix("dmc/").partition("-")
    twin = suite.load(
        domain, task, {"random": random}, environment_kwargs={"flat_observation": True}
    )
    twin.physics._make_rendering_contexts = lambda: None  # quadruped-escape wants one, to no end
    return twin


def model_arrays(model: Any) -> dict[str, np.ndarray]:
    """Every array of an mjModel, and every array and number of its options."""
    found = {name: getattr(model, name) for name in dir(model) if not name.startswith("_")}
    for group in ("opt", "stat", "vis"):
        part = found.pop(group)
        found |= {f"{group}.{n}": getattr(part, n) for n in dir(part) if not n.startswith("_")}
    return {
        name: np.array(value)
        for name, value in found.items()
        if isinstance(value, np.ndarray | int | float)
    }


def test_the_ids_are_the_tasks_of_the_suite() -> None:
    assert sorted(dmc.FAMILY.ids) == sorted(ALL)


@pytest.mark.parametrize("env_id", EVERY_DOMAIN)
def test_steps_equal_dm_control_itself(env_id: str) -> None:
    twin = load_twin(env_id, np.random.RandomState(np.random.PCG64(7)))
    env = make(env_id, 7, max_episode_steps=None)
    space = twin.action_spec()
    low, high = space.minimum, space.maximum
    if "lqr" in env_id:
        assert (high == 1e10).all() and (low == -1e10).all()
        low, high = -np.ones(space.shape), np.ones(space.shape)
    obs = env.reset()
    for episode in range(2):
        obs, time_step = env.reset() if episode else obs, twin.reset()
        for action in random_actions(env_id, LIMIT, seed=episode):
            np.testing.assert_array_equal(obs, time_step.observation["observations"].astype("f4"))
            obs, reward, terminated, truncated = env.step(action)
            time_step = twin.step((low + high) / 2 + (high - low) / 2 * action)
            assert reward == time_step.reward
            assert terminated == truncated == time_step.last() == False  # noqa: E712
    assert env.spec.obs_shape == twin.observation_spec()["observations"].shape == obs.shape
    assert env.spec.obs_dtype == str(obs.dtype) == "float32"
    assert (env.spec.action_dim,) == space.shape
    assert (env.spec.num_actions, env.spec.success_return) == (None, None)
    assert env.spec.max_episode_steps == 1000
    assert twin._step_limit == (np.inf if "lqr" in env_id else 1000)


@pytest.mark.parametrize("env_id", EVERY_DOMAIN)
def test_restored_tasks_continue_bit_for_bit(env_id: str) -> None:
    options = {"max_episode_steps": LIMIT}
    assert_continues_after_restore(env_id, LIMIT - 2, LIMIT + 5, min_ends=1, **options)


@pytest.mark.parametrize("env_id", ["dmc/humanoid-walk", slow("dmc/manipulator-insert_peg")])
def test_a_restored_task_stays_on_its_path(env_id: str) -> None:
    assert_continues_after_restore(env_id, 120, 200, 1, False, max_episode_steps=200)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ALL)
def test_no_array_of_the_model_changes_that_is_not_saved(env_id: str) -> None:
    twins = [load_twin(env_id, seed) for seed in (0, 1)]
    before, other = (model_arrays(twin.physics.model.ptr) for twin in twins)
    for action in random_actions(env_id, 10, seed=0):
        twins[0].step(action)
    after = model_arrays(twins[0].physics.model.ptr)
    changed = {
        name
        for name, value in before.items()
        if not np.array_equal(value, other[name], equal_nan=name != "signature")
        or not np.array_equal(value, after[name])
    }
    saved = make(env_id, 0).state_dict()["simulator"]["model"]
    assert changed <= set(saved)
    # By task, not by domain: what one of them leaves alone another one edits.
    unedited = env_id == "dmc/point_mass-easy" or env_id.startswith("dmc/quadruped")
    assert changed or not saved or (unedited and env_id != "dmc/quadruped-escape")


def test_the_half_of_a_pair_of_normal_numbers_is_restored() -> None:
    env, other = make("dmc/lqr-lqr_2_1", 0), make("dmc/lqr-lqr_2_1", 1)
    env.reset()
    inside(env)._random.randn()
    other.load_state_dict(through_files(env.state_dict()))
    np.testing.assert_array_equal(other.reset(), env.reset())


def test_only_lqr_at_rest_terminates_and_can_be_stepped_on() -> None:
    for terminate in (True, False):
        env = make("dmc/lqr-lqr_2_1", 0, terminate=terminate)
        env.reset()
        physics = inside(env)._physics
        physics.data.qpos[:] = physics.data.qvel[:] = 0
        physics.forward()
        still = np.zeros(1, dtype=np.float32)
        assert env.step(still)[2] == terminate
        if not terminate:
            assert all(not env.step(still)[3] for _ in range(LIMIT - 2))
            assert env.step(still)[2:] == (False, True)


def test_a_simulation_that_blows_up_says_so() -> None:
    env = make("dmc/cartpole-swingup", 0)
    env.reset()
    inside(env)._physics.data.qvel[:] = np.nan
    with pytest.raises(envs.NotFinite, match="mjWARN_BADQVEL"):
        env.step(np.zeros(1, dtype=np.float32))
    assert np.isfinite(env.reset()).all()


def test_nothing_but_pictures_needs_opengl() -> None:
    # Escape's own reset would open a context.
    program = """
import os, sys
import numpy as np
from rlplast import envs
env = envs.make("dmc/quadruped-escape", np.random.default_rng(0))
env.load_state_dict(env.state_dict())
env.reset()
print("MUJOCO_GL" in os.environ, "OpenGL" in sys.modules)
"""
    env = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


@pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="needs libEGL")
@pytest.mark.parametrize("env_id", ["dmc/cartpole-swingup", slow("dmc/quadruped-escape")])
def test_drawing_changes_nothing_and_shows_what_was_restored(env_id: str) -> None:
    env, other = make(env_id, 0), make(env_id, 1)
    env.reset(), other.reset()
    state = env.state_dict()
    picture = env.render()
    assert picture.shape == (240, 320, 3) and picture.dtype == np.uint8
    assert_same_states(env.state_dict(), state)
    assert not np.array_equal(picture, other.render())
    other.load_state_dict(state)
    for each in (other, env):
        np.testing.assert_array_equal(each.render(), picture)
        each.close()
