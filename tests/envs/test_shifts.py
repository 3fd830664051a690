"""One environment as several tasks: what is drawn, what is shown, and what is done."""

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest

from rlplast import envs
from rlplast.envs.shifts import draw_shift

CARTPOLE, PENDULUM = envs.spec("gym/CartPole-v1"), envs.spec("gym/Pendulum-v1")
SCREEN = dataclasses.replace(envs.spec("minatar/breakout"), id="one/screen", obs_shape=(1, 8, 8))
BREAKOUT, ASTERIX = envs.spec("minatar/breakout"), envs.spec("atari/Asterix")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def vector(spec: envs.EnvSpec, shift: envs.Shift, n: int = 2, **options: Any) -> envs.TaskVector:
    made = envs.make_vector(spec.id, [rng(i) for i in range(n)], **options)
    return envs.TaskVector(made, spec, shift)


def test_permuted_channels_and_permuted_pixels_hold_the_same_values():
    planes = rng(1).integers(2, size=(3, 4, 10, 10)).astype(np.uint8)
    seen = draw_shift("permuted_observations", BREAKOUT, rng(0)).seen(planes)
    before, after = (sorted(plane.tobytes() for plane in x[0]) for x in (planes, seen))
    assert before == after
    assert seen.tobytes() != planes.tobytes()
    place = np.arange(84 * 84)  # its two digits on two screens, the same noise on all after them
    noise = rng(1).integers(256, size=84 * 84)
    screens = np.array([place % 256, place // 256, noise, noise]).astype(np.uint8)
    seen = draw_shift("permuted_observations", ASTERIX, rng(1)).seen(screens.reshape(4, 84, 84))
    assert seen.dtype == np.uint8
    low, high, *others = seen.reshape(4, -1).astype(np.int64)
    order = low + 256 * high  # one order for all screens
    assert np.array_equal(np.sort(order), place)
    assert (order != place).mean() > 0.9
    for other in others:
        assert np.array_equal(other, noise[order])


def test_a_permutation_is_never_the_identity_and_all_others_are_as_likely():
    for spec, others in ((BREAKOUT, 24 - 1), (PENDULUM, 6 * 8 - 1)):
        units = spec.obs_shape[0]
        marks = np.arange(1, 1 + units).reshape(units, *[1] * (len(spec.obs_shape) - 1))
        obs = np.broadcast_to(marks, (1, *spec.obs_shape))
        drawn = [draw_shift("permuted_observations", spec, rng(i)).seen(obs) for i in range(2000)]
        counts = Counter(tuple(seen.reshape(units, -1)[:, 0]) for seen in drawn)
        assert tuple(marks.ravel()) not in counts and len(counts) == others
        expected = 2000 / others
        assert max(abs(n - expected) for n in counts.values()) < 4.5 * expected**0.5


def test_permuted_coordinates_are_a_signed_permutation_and_the_first_that_is_drawn():
    obs = rng(1).normal(size=(5, 4)).astype(np.float32)
    for seed in range(9):
        stream, shift = rng(seed), draw_shift("permuted_observations", CARTPOLE, rng(seed))
        expected = obs[:, stream.permutation(4)] * stream.choice([-1, 1], 4)
        np.testing.assert_array_equal(shift.seen(obs), expected.astype("f4"), strict=True)


def test_shifted_observations_are_moved_by_a_constant():
    shift = draw_shift("shifted_observations", CARTPOLE, rng(), std=2.0)
    env, plain = vector(CARTPOLE, shift), vector(CARTPOLE, envs.NO_SHIFT)
    offsets = [env.reset() - plain.reset()]
    for _ in range(30):
        one, two = env.step(np.array([0, 1])), plain.step(np.array([0, 1]))
        offsets += [one.obs - two.obs, one.obs_final - two.obs_final]
    assert np.ptp(offsets, axis=(0, 1)).max() < 1e-5 and np.abs(offsets).max() > 0.5
    drawn = [draw_shift("shifted_observations", CARTPOLE, rng(i), std=2.0) for i in range(500)]
    assert np.std([shift.offset for shift in drawn]) == pytest.approx(2.0, rel=0.1)


def test_scaled_actions_do_what_smaller_actions_do():
    shift = draw_shift("scaled_actions", PENDULUM, rng(), low=0.25, high=0.5)
    assert 0.25 <= shift.scale <= 0.5
    env, plain = vector(PENDULUM, shift), vector(PENDULUM, envs.NO_SHIFT)
    env.reset()
    plain.reset()
    for action in np.linspace(-1, 1, 20, dtype=np.float32):
        actions = np.full((2, 1), action)
        smaller = plain.step(actions * np.float32(shift.scale))
        assert np.array_equal(env.step(actions).obs, smaller.obs)


@pytest.mark.parametrize("spec", [CARTPOLE, PENDULUM])
def test_late_actions_are_those_of_some_steps_ago_and_none_at_an_episodes_start(
    spec: envs.EnvSpec,
):
    options, is_vector = {"max_episode_steps": 12}, spec.action_dim is not None
    env = vector(spec, envs.Shift(delay=3), **options)
    plain = vector(spec, envs.NO_SHIFT, **options)
    env.reset(), plain.reset()
    noop = np.zeros((2, 1), np.float32) if is_vector else np.zeros(2, np.int64)
    late, draws = [noop] * 3, rng(7)
    for step in range(60):
        chosen = draws.integers(2, size=2)
        late.append(chosen[:, None].astype(np.float32) - 0.5 if is_vector else chosen)
        if step % 5 == 4:  # late actions are part of the state
            state = env.state_dict()
            env.step(late[-1]), env.load_state_dict(state)
        one, two = env.step(late[-1]), plain.step(late.pop(0))
        assert np.array_equal(one.obs, two.obs), step
        ended = (one.terminated | one.truncated).reshape(noop.shape)
        late = [np.where(ended, noop, action) for action in late]
    delays = {draw_shift("delayed_actions", spec, rng(i), most=2).delay for i in range(20)}
    assert delays == {1, 2}


def test_factors_are_log_uniform_in_their_range():
    for name in ("gravity", "friction"):
        shifts = [draw_shift(name, PENDULUM, rng(i), low=0.5, high=2.0) for i in range(2000)]
        factors = np.log2([shift.factors[name] for shift in shifts])
        assert factors.min() > -1 and factors.max() < 1
        assert factors.mean() == pytest.approx(0, abs=0.1)
        assert np.quantile(factors, 0.25) == pytest.approx(-0.5, abs=0.07)


def test_shift_that_does_not_go_with_an_environment_is_refused():
    for name, spec, says in (
        ("shifted_observations", BREAKOUT, "'minatar/breakout' are pictures"),
        ("permuted_observations", SCREEN, "'one/screen' have one channel"),
        ("scaled_actions", CARTPOLE, "'gym/CartPole-v1' are integers"),
    ):
        params = {key: default for key, (default, _) in envs.SHIFTS[name].items()}
        with pytest.raises(ValueError, match=says):
            draw_shift(name, spec, rng(), **params)


def moved(env_id: str, steps: int = 20, **options: Any) -> np.ndarray:
    env = envs.make(env_id, rng(3), **options)
    env.reset()
    action = 1 if env.spec.action_dim is None else np.full(env.spec.action_dim, 0.2, np.float32)
    seen = [env.step(action)[0] for _ in range(steps)]
    env.close()
    return np.array(seen)


def test_gravity_of_classic_tasks():
    for env_id in ("gym/CartPole-v1", "gym/MountainCar-v0", "gym/Pendulum-v1"):
        assert np.array_equal(moved(env_id, 5), moved(env_id, 5, gravity=1.0))
        assert not np.array_equal(moved(env_id, 5), moved(env_id, 5, gravity=2.0))


def test_pendulum_falls_by_its_own_equation_under_another_gravity():
    env = envs.make("gym/Pendulum-v1", rng(3), gravity=0.5)
    _, sin, speed = env.reset()
    obs, *_ = env.step(np.zeros(1, np.float32))
    assert obs[2] == pytest.approx(speed + 3 * 5.0 / 2 * sin * 0.05, abs=1e-5)  # g is 10 × 0.5


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["gym/Hopper-v5", "dmc/walker-walk"])
def test_constants_of_mujoco_stay_through_episodes_and_states(env_id: str):
    pytest.importorskip("dm_control" if env_id.startswith("dmc") else "mujoco")
    plain = moved(env_id, 30, terminate=False)
    for constant in ("gravity", "friction"):
        assert np.array_equal(plain, moved(env_id, 30, terminate=False, **{constant: 1.0}))
        assert not np.array_equal(plain, moved(env_id, 30, terminate=False, **{constant: 0.3}))
        env = envs.make(env_id, rng(3), terminate=False, **{constant: 0.3})
        env.reset()
        state = env.state_dict()
        action = np.zeros(env.spec.action_dim or 1, np.float32)
        after = [env.step(action)[0] for _ in range(30)]
        env.reset()
        env.load_state_dict(state)
        assert all(np.array_equal(env.step(action)[0], obs) for obs in after)
        env.close()
