"""Most of these need HumanoidBench: run them with scripts/install_humanoid_bench.sh's Python."""

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from rlplast import envs
from rlplast.envs import humanoid_bench
from tests.envs.checks import (
    assert_continues_after_restore,
    assert_same_states,
    assert_same_steps,
    generator,
    play,
    random_actions,
)
from tests.marks import slow

WALK = "humanoid_bench/h1-walk-v0"
# Of each kind: plain, contacts that end it, four times the state, edits of the model, fields that
# outlive an episode, a randomness that changes, draws from the global generator, another robot.
TASKS = (
    "h1-walk h1-balance_simple h1-run h1hand-walk h1-maze h1-package h1-truck h1-highbar_simple "
    "h1-sit_hard h1-basketball g1-walk"
).split()
SLOW_TASKS = (
    "h1hand-bookshelf_hard h1hand-cabinet h1hand-cube h1hand-kitchen h1hand-room h1hand-spoon "
    "h1hand-window h1strong-highbar_hard g1-insert_small"
).split()

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("humanoid_bench") is None,
    reason="HumanoidBench is not installed: see scripts/install_humanoid_bench.sh",
)


@pytest.fixture
def fresh_import() -> Any:
    """Lets a test import the package under other circumstances than the tests around it."""
    humanoid_bench._package.cache_clear()
    yield
    humanoid_bench._package.cache_clear()


def parts(env: envs.Env) -> Any:
    """The `HumanoidBenchTask` inside."""
    return env.simulator.task  # type: ignore[attr-defined]


def test_an_environment_is_described_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "humanoid_bench", None)
    for name, *expected in (  # counted with the package itself
        ("h1-walk", 51, 19, 700, 1000),
        ("h1-push", 63, 19, 700, 500),
        ("h1hand-kitchen", 97, 61, 4, 500),
        ("h1strong-highbar_hard", 151, 61, 750, 1000),
        ("h1simplehand-stand", 103, 45, 800, 1000),
        ("g1-window", 107, 37, 650, 1000),
    ):
        spec = envs.spec(f"humanoid_bench/{name}-v0")
        found = [*spec.obs_shape, spec.action_dim, spec.success_return, spec.max_episode_steps]
        assert found == expected, name


def test_every_robot_is_listed_with_the_tasks_it_has_a_model_for() -> None:
    counts = Counter(env_id.split("/")[1].split("-")[0] for env_id in humanoid_bench.FAMILY.ids)
    assert counts == {"h1": 20, "h1hand": 30, "h1simplehand": 1, "h1strong": 1, "g1": 29}


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, fresh_import: None) -> None:
    mujoco, script = ModuleType("mujoco"), "scripts/install_humanoid_bench.sh"
    assert (Path(__file__).parents[2] / script).is_file()
    monkeypatch.setitem(sys.modules, "mujoco", mujoco)
    monkeypatch.setitem(sys.modules, "humanoid_bench", None)
    with pytest.raises(envs.MissingPackage, match=f"`bash {script}`"):
        envs.make(WALK, generator(0))

    mujoco.__version__ = "3.17.0"  # type: ignore[attr-defined]
    for name in ("humanoid_bench", "humanoid_bench.env"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(envs.MissingPackage, match=r"mujoco 3\.1\.6, installed is 3\.17\.0"):
        envs.make(WALK, generator(0))

    def fail(name: str) -> ModuleType:
        raise AttributeError("'NoneType' object has no attribute 'glGetError'")  # as mujoco does

    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setattr(humanoid_bench.importlib, "import_module", fail)
    with pytest.raises(envs.MissingPackage, match="'libosmesa6'"):
        envs.make(WALK, generator(0))


def test_global_draws_come_from_the_given_generator_and_leave_no_trace() -> None:
    np.random.seed(1)
    np.random.standard_normal()  # leaves the other half of a pair behind
    before = np.random.get_state(legacy=False)
    rng, twin = generator(5), generator(5)
    with humanoid_bench._global_draws_from(rng):
        drawn = [np.random.random(), np.random.uniform(2, 3), np.random.standard_normal()]
    assert drawn[:2] == [twin.random(), 2 + twin.random()]
    assert_same_states(np.random.get_state(legacy=False), before)
    with pytest.raises(KeyError), humanoid_bench._global_draws_from(rng):
        raise KeyError
    assert_same_states(np.random.get_state(legacy=False), before)


@needs_package
def test_the_table_is_the_packages_own() -> None:
    humanoid_bench._package()
    package: Any = importlib.import_module("humanoid_bench.env")
    models = Path(package.__file__).parent / "assets/envs"
    found = set()
    for robot_name, robot_class in package.ROBOTS.items():
        control = "torque" if robot_name == "g1" else "pos"
        for name, task_class in package.TASKS.items():
            env_id = f"humanoid_bench/{robot_name}-{name}-v0"
            # No touch, and a task that fails at its first step.
            left_out = robot_name == "h1touch" or (robot_name, name) == ("g1", "truck")
            if left_out or not (models / f"{robot_name}_{control}_{name}.xml").exists():
                continue
            found.add(env_id)
            task = task_class(robot_class(), None)
            spec = envs.spec(env_id)
            assert spec.obs_shape == task.observation_space.shape, env_id
            assert spec.success_return == task.success_bar, env_id
            assert spec.max_episode_steps == task.max_episode_steps, env_id
            assert humanoid_bench._ROBOTS[robot_name].control == control
            assert task.kwargs == {}
    assert found == set(humanoid_bench.FAMILY.ids)
    assert importlib.import_module("mujoco").__version__ == "3.1.6"


@needs_package
@pytest.mark.parametrize("name", ["h1-walk", "h1-push", "h1-balance_simple"])
def test_steps_equal_the_package_itself(name: str) -> None:
    package: Any = importlib.import_module("humanoid_bench.env")
    env = envs.make(f"humanoid_bench/{name}-v0", generator(7))
    actions = random_actions(env.spec.id, 150, seed=1)
    steps = iter(play(env, actions))
    robot, task = name.split("-")
    twin = package.HumanoidEnv(robot=robot, control="pos", task=task, render_mode=None)
    twin.np_random = rng = generator(7)
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(rng.bit_generator)  # type: ignore[attr-defined]
    try:
        np.testing.assert_array_equal(next(steps)[0], twin.reset()[0].astype(np.float32))
        for action in actions:
            obs, *ours = next(steps)
            theirs = twin.step(action)
            np.testing.assert_array_equal(obs, theirs[0].astype(np.float32))
            assert ours[:2] == list(theirs[1:3])
            if theirs[2]:
                np.testing.assert_array_equal(next(steps)[0], twin.reset()[0].astype(np.float32))
    finally:
        np.random.set_bit_generator(before)  # type: ignore[attr-defined]


@needs_package
@pytest.mark.parametrize("name", [*TASKS, *map(slow, SLOW_TASKS)])
def test_restored_tasks_continue_bit_for_bit(name: str) -> None:
    env_id = f"humanoid_bench/{name}-v0"
    everywhere = name in ("h1-walk", "h1-maze", "h1-truck", "h1-highbar_simple")
    assert_continues_after_restore(env_id, 50, 130, 2, everywhere, max_episode_steps=60)


@needs_package
def test_the_robot_g1_changes_nobody_elses_rewards() -> None:
    alone, beside = envs.make(WALK, generator(1)), envs.make(WALK, generator(1))
    g1 = envs.make("humanoid_bench/g1-walk-v0", generator(1))
    alone.reset(), beside.reset(), g1.reset()
    actions, steps = random_actions(WALK, 60, seed=1), []
    expected = play(alone, actions)
    for action in actions:
        play(g1, np.zeros((1, 37), np.float32))
        steps += play(beside, action[None])  # type: ignore[index]
    assert_same_steps(steps, expected)


@needs_package
def test_heights_are_those_of_the_package() -> None:
    """In a process of its own, where no g1 has been built yet."""
    code = (
        "from humanoid_bench.env import HumanoidEnv\n"
        "from humanoid_bench.envs import basic_locomotion_envs as m\n"
        "print(m._STAND_HEIGHT, m._CRAWL_HEIGHT)\n"
        "HumanoidEnv(robot='g1', control='torque', task='walk', render_mode=None)\n"
        "print(m._STAND_HEIGHT, m._CRAWL_HEIGHT)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heights = humanoid_bench._HEIGHTS
    stand, crawl = heights["_STAND_HEIGHT"], heights["_CRAWL_HEIGHT"]
    assert done.stdout.split() == [str(v) for v in (stand[0], crawl[0], stand[1], crawl[1])]


@needs_package
def test_tasks_edit_no_other_array_of_the_model() -> None:
    for name in TASKS:
        env = envs.make(f"humanoid_bench/{name}-v0", generator(0), max_episode_steps=20)
        model = parts(env)._env.model

        def arrays(model: Any = model) -> dict[str, np.ndarray]:
            names = [n for n in dir(model) if not n.startswith(("_", "mesh_", "tex_"))]
            found = {n: getattr(model, n) for n in names}
            return {n: v.copy() for n, v in found.items() if isinstance(v, np.ndarray)}

        before = arrays()
        env.reset()
        play(env, random_actions(env.spec.id, 50, seed=0))
        changed = {n for n, v in arrays().items() if v.tobytes() != before[n].tobytes()}
        assert changed <= set(humanoid_bench._EDITED), name


@needs_package
def test_building_again_shares_no_model_and_opens_no_file() -> None:
    first = envs.make(WALK, generator(0))
    open_files = len(os.listdir("/proc/self/fd"))
    second = envs.make(WALK, generator(0))
    assert len(os.listdir("/proc/self/fd")) == open_files
    parts(first)._env.model.body_pos[:] = 0
    assert parts(second)._env.model.body_pos.any()
