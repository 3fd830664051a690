import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlplast import envs
from rlplast.envs.workers import WorkerGroups
from tests.envs.checks import assert_same_states, generator, random_actions, through_files
from tests.marks import slow

CASES: list[tuple[str, dict[str, Any]]] = [
    ("atari/Breakout", {"max_episode_steps": 40}),
    ("minatar/asterix", {}),
    ("gym/CartPole-v1", {"max_episode_steps": 20}),
    ("gym/Hopper-v5", {"max_episode_steps": 15, "action_repeat": 2}),
]
# Their simulators take long to start in a worker.
FEW = [case if case[0] == "gym/CartPole-v1" else slow(*case) for case in CASES]


def generators(count: int, first: int = 0) -> list[np.random.Generator]:
    return [generator(first + index) for index in range(count)]


def all_actions(env_id: str, steps: int, num_envs: int, seed: int = 0) -> np.ndarray:
    flat = np.asarray(random_actions(env_id, steps * num_envs, seed))
    return flat.reshape(steps, num_envs, *flat.shape[1:])


def assert_same_step(ours: envs.VectorStep, theirs: envs.VectorStep) -> None:
    for name, value in vars(theirs).items():
        np.testing.assert_array_equal(getattr(ours, name), value, err_msg=name)
        assert np.asarray(getattr(ours, name)).dtype == np.asarray(value).dtype


@pytest.mark.parametrize(("env_id", "options"), [slow(*CASES[0]), *CASES[1:]])
def test_steps_equal_single_environments_reset_by_hand(
    env_id: str, options: dict[str, Any]
) -> None:
    singles = [envs.make(env_id, rng, **options) for rng in generators(3)]
    vector = envs.make_vector(env_id, generators(3), **options)
    expected_obs = np.stack([single.reset() for single in singles])
    np.testing.assert_array_equal(vector.reset(), expected_obs)
    returns, lengths, flags = np.zeros(3), np.zeros(3, dtype=int), set()
    for actions in all_actions(env_id, 130, 3):
        step = vector.step(actions)
        frames = 0
        for i, single in enumerate(singles):
            obs, reward, terminated, truncated = single.step(actions[i])
            frames += single.step_frames
            returns[i] += reward
            lengths[i] += 1
            np.testing.assert_array_equal(step.obs_final[i], obs)
            assert step.reward[i] == np.float32(reward)
            assert (step.terminated[i], step.truncated[i]) == (terminated, truncated)
            flags.add((terminated, truncated))
            if terminated or truncated:
                assert (step.episode_return[i], step.episode_length[i]) == (returns[i], lengths[i])
                returns[i], lengths[i] = 0, 0
                obs = single.reset()
                assert (step.obs_final[i] != obs).any()
            else:
                assert np.isnan(step.episode_return[i]) and step.episode_length[i] == 0
            np.testing.assert_array_equal(step.obs[i], obs)
        assert step.frames == frames
        assert vector.obs is step.obs
    assert len(flags) >= 2
    kinds = [str(value.dtype) for name, value in vars(step).items() if name != "frames"]
    assert kinds[2:] == ["float32", "bool", "bool", "float64", "int64", "float64"]
    assert {*kinds[:2]} == {vector.spec.obs_dtype}
    assert type(step.frames) is int


@pytest.mark.parametrize(("env_id", "options"), FEW)
def test_workers_change_nothing_and_take_over_a_state(env_id: str, options: dict[str, Any]) -> None:
    # Spawned workers have a hash seed of their own, so this also shows that none depends on it.
    here = envs.make_vector(env_id, generators(3), **options)
    there = envs.make_vector(env_id, generators(3), workers=2, **options)
    np.testing.assert_array_equal(there.reset(), here.reset())
    actions = all_actions(env_id, 70, 3)
    for row in actions[:25]:
        assert_same_step(there.step(row), here.step(row))
    states = there.state_dict(), here.state_dict()
    assert_same_states(*states)
    saved = through_files(states[0])
    other = envs.make_vector(env_id, generators(3, first=50), **options)
    other.load_state_dict(states[0])
    there.load_state_dict(states[1])
    np.testing.assert_array_equal(other.obs, here.obs)
    for row in actions[25:]:
        expected = here.step(row)
        assert_same_step(there.step(row), expected)
        assert_same_step(other.step(row), expected)
    there.close()
    for state in states:  # a copy, which no step has changed
        assert_same_states(state, saved)


BAD_ACTIONS: list[tuple[str, Any, str]] = [
    ("CartPole-v1", np.zeros(3, int), "allowed are 2 integers"),
    ("CartPole-v1", np.zeros(2), "float64 of shape"),
    ("CartPole-v1", np.array([0, 2]), "allowed are 0 to 1"),
    ("CartPole-v1", np.array([-1, 0]), "allowed are 0 to 1"),
    ("Pendulum-v1", np.zeros((3, 1)), r"allowed are floats of shape \(2, 1\)"),
    ("Pendulum-v1", np.array([[0.0], [1.01]]), r"1.01 at \[1, 0\]"),
    ("Pendulum-v1", np.array([[np.nan], [0.0]]), r"nan at \[0, 0\]"),
]


def test_bad_actions_are_refused_before_anything_moves() -> None:
    for task, actions, message in BAD_ACTIONS:
        vector = envs.make_vector(f"gym/{task}", generators(2))
        vector.reset()
        before = vector.state_dict()
        with pytest.raises(ValueError, match=message):
            vector.step(actions)
        assert_same_states(vector.state_dict(), before)


BLOW_UPS = [
    ("start", np.inf, 0, "step 0: entry 1 of the first observation is inf"),
    ("reward", np.nan, 2, "step 2: the reward is nan"),
    ("reward", 1e39, 2, "step 2: the reward is inf"),  # in float32
    ("observation", -np.inf, 2, "step 2: entry 1 of the observation is -inf"),
    ("final", np.nan, 5, "step 5: entry 1 of the observation is nan"),
    ("reset", np.nan, 5, "step 0: entry 1 of the first observation is nan"),
    ("raise", 0.0, 2, "the simulation diverged"),
]


def spoil(env: Any, what: str, value: float) -> None:
    """Let one thing not be finite at the second step of an episode, at its end, or at a reset."""
    reset, step, count = env.reset, env.step, [0]

    def spoiled(obs: np.ndarray, now: bool) -> np.ndarray:
        return np.array([obs[0], value, obs[2]], np.float32) if now else obs

    def spoiled_step(action: np.ndarray) -> tuple[np.ndarray, float, bool, bool]:
        count[0] += 1
        now = what if count[0] == (5 if what == "final" else 2) else ""
        if now == "raise":
            raise envs.NotFinite("the simulation diverged")
        obs, reward, *ends = step(action)
        obs = spoiled(obs, now in ("final", "observation"))
        return obs, value if now == "reward" else reward, *ends

    env.step = spoiled_step
    env.reset = lambda: spoiled(reset(), what == ("reset" if count[0] else "start"))


def test_what_is_not_finite_stops_the_run_and_says_where() -> None:
    for what, value, steps, message in BLOW_UPS:
        vector: Any = envs.make_vector("gym/Pendulum-v1", generators(2), max_episode_steps=5)
        spoil(vector._groups._envs[1], what, value)
        taken = 0
        message = rf"^environment 1 of 'gym/Pendulum-v1', (episode )?{message}"
        with pytest.raises(envs.NotFinite, match=message):
            vector.reset()
            for _ in range(6):
                taken += 1
                vector.step(np.zeros((2, 1), np.float32))
        assert taken == steps, what


def not_finite() -> None:
    raise envs.NotFinite("the simulation diverged")


def test_what_is_not_finite_in_a_worker_stays_that() -> None:
    with pytest.raises(envs.NotFinite, match="diverged"):
        WorkerGroups(not_finite, [()])


class OneArray(envs.Simulator):
    """Writes every observation into the same array."""

    def __init__(self) -> None:
        self.obs = np.zeros(1, np.float32)

    def reset(self) -> np.ndarray:
        self.obs[:] = 0
        return self.obs

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        self.obs += 1
        return self.obs, 0.0, bool(self.obs >= 3), False


def test_the_last_observation_of_an_episode_outlives_the_next_ones_first() -> None:
    rng, spec = generator(0), envs.EnvSpec("x/OneArray", (1,), num_actions=2)
    one_array = lambda rng: envs.Env(spec, OneArray(), rng)  # noqa: E731
    vector = envs.VectorEnv(spec, one_array, [rng])
    vector.reset()
    steps = [vector.step(np.array([0])) for _ in range(4)]
    assert [float(step.obs_final[0, 0]) for step in steps] == [1, 2, 3, 1]
    assert [float(step.obs[0, 0]) for step in steps] == [1, 2, 0, 1]
    for wrong in ({"obs_shape": (2,)}, {"obs_dtype": "uint8"}):
        other = dataclasses.replace(spec, **wrong)
        with pytest.raises(envs.EnvFailed, match="returned float32 of shape"):
            envs.VectorEnv(other, one_array, [rng]).reset()


class Counting(OneArray):
    """Counts its steps where `Env` does."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        self.steps += 1
        return np.full(1, self.steps, np.float32), 0.0, False, self.steps > 9


def test_a_step_of_a_simulator_that_counts_its_own_counts_once() -> None:
    spec = envs.EnvSpec("x/Counting", (1,), num_actions=2, max_episode_steps=4)
    env = envs.Env(spec, Counting(), generator(0))
    env.reset()
    steps = [env.step(0) for _ in range(4)]
    assert [(obs[0], truncated) for obs, *_, truncated in steps] == [
        (1, False), (2, False), (3, False), (4, True),
    ]  # fmt: skip


def test_what_does_not_go_together_is_refused() -> None:
    vector = envs.make_vector("gym/CartPole-v1", generators(2))
    with pytest.raises(RuntimeError, match=r"call reset\(\) or load_state_dict\(\) first"):
        vector.step(np.array([0, 0]))
    for rngs, workers, message in (
        ([generator(0)] * 2, 2, "its own"),  # each worker would play the same
        (generators(2), -1, "workers is -1"),
        (generators(2), 3, "workers is 3"),
    ):
        with pytest.raises(ValueError, match=message):
            envs.make_vector("gym/CartPole-v1", rngs, workers=workers)
    vector.reset()
    with pytest.raises(ValueError, match="2 environments cannot fill 3"):
        envs.make_vector("gym/CartPole-v1", generators(3)).load_state_dict(vector.state_dict())


def test_an_error_in_a_worker_is_raised_here_and_dead_or_silent_ones_are_reported() -> None:
    vector = envs.make_vector("gym/CartPole-v1", generators(2), workers=2)
    with contextlib.closing(vector):
        groups: Any = vector._groups
        with pytest.raises(envs.EnvFailed, match=r"environment 1 of .*no episode running"):
            groups.call("_call", [(0, "reset"), (0, "step", 0)])
        vector.reset()
        state = vector.state_dict()
        bad = through_files(state)
        bad["envs"][1]["id"] = "gym/Acrobot-v1"
        with pytest.raises(ValueError, match="cannot continue") as caught:
            vector.load_state_dict(bad)
        assert "in environment worker 1" in caught.value.__notes__[0]
        vector.load_state_dict(state)
        vector.step(np.array([0, 1]))  # the workers still answer
        assert isinstance(vector._groups, WorkerGroups)
        vector._groups._timeout = 0.2
        process = vector._groups._processes[0]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(envs.WorkerDied, match=r"worker 0 .* for 0.2 s .* env.timeout"):
            vector.step(np.array([0, 1]))
        process.join(10)
        with pytest.raises(envs.WorkerDied, match=r"worker 0 .* exit code -9$"):
            vector.step(np.array([0, 1]))
    vector.close()


@pytest.mark.parametrize("ending", ["pass", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_workers_end_with_their_parent(tmp_path: Path, ending: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(f"""
import os, signal
import numpy as np
from rlplast import envs
if __name__ == "__main__":
    vector = envs.make_vector("gym/CartPole-v1", [np.random.default_rng(0)], workers=1)
    vector.reset()
    os.kill(vector._groups._processes[0].pid, signal.SIGTERM)
    vector.step(np.array([0]))
    print("stepped", flush=True)
    {ending}
""")
    # The worker holds the output open: this returns only when it has ended too.
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert (done.stdout, done.stderr) == ("stepped\n", "")
    assert done.returncode == (0 if ending == "pass" else -signal.SIGKILL)
