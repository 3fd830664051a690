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


def test_permuted_coordinates_are_a_signed_permutation():
    shift = draw_shift("permuted_observations", CARTPOLE, rng())
    obs = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    seen = shift.seen(obs)
    matrix = np.linalg.lstsq(obs, seen, rcond=None)[0].round(4)
    assert (np.abs(matrix).sum(0) == 1).all()
    assert (np.abs(matrix).sum(1) == 1).all()
    assert set(np.unique(matrix)) <= {-1.0, 0.0, 1.0}
    assert seen.dtype == np.float32
    drawn = [draw_shift("permuted_observations", CARTPOLE, rng(i)) for i in range(9)]
    assert len({tuple(s.seen(obs)[0]) for s in drawn}) > 5
    signs = np.array([s.seen(np.ones((1, 4), np.float32)) for s in drawn])
    assert 0.2 < (signs == -1).mean() < 0.8


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


@pytest.mark.parametrize(("spec", "others"), [(BREAKOUT, 24 - 1), (PENDULUM, 6 * 8 - 1)])
def test_a_permutation_is_never_the_identity_and_all_others_are_as_likely(
    spec: envs.EnvSpec, others: int
):
    units = spec.obs_shape[0]
    marks = np.arange(1, 1 + units).reshape(units, *[1] * (len(spec.obs_shape) - 1))
    obs = np.broadcast_to(marks, (1, *spec.obs_shape))
    drawn = [draw_shift("permuted_observations", spec, rng(i)).seen(obs) for i in range(2000)]
    counts = Counter(tuple(seen.reshape(units, -1)[:, 0]) for seen in drawn)
    assert tuple(marks.ravel()) not in counts and len(counts) == others
    expected = 2000 / others
    assert max(abs(n - expected) for n in counts.values()) < 4.5 * expected**0.5


def test_a_first_draw_that_is_not_the_identity_stands():
    obs = rng(1).normal(size=(5, 4)).astype(np.float32)
    for seed in range(9):
        stream, shift = rng(seed), draw_shift("permuted_observations", CARTPOLE, rng(seed))
        expected = obs[:, stream.permutation(4)] * stream.choice([-1, 1], 4)
        assert np.array_equal(shift.seen(obs), expected)


def test_shifted_observations_are_moved_by_a_constant():
    shift = draw_shift("shifted_observations", CARTPOLE, rng(), std=2.0)
    env, plain = vector(CARTPOLE, shift), vector(CARTPOLE, envs.NO_SHIFT)
    offsets = [env.reset() - plain.reset()]
    for _ in range(30):
        action = np.array([0, 1])
        one, two = env.step(action), plain.step(action)
        offsets += [one.obs - two.obs, one.obs_final - two.obs_final]
    assert np.ptp(offsets, axis=(0, 1)).max() < 1e-5
    assert np.abs(offsets).max() > 0.5
    many = [
        draw_shift("shifted_observations", CARTPOLE, rng(i), std=2.0).offset for i in range(500)
    ]
    assert np.std(np.array(many)) == pytest.approx(2.0, rel=0.1)


def test_scaled_actions_do_what_smaller_actions_do():
    shift = draw_shift("scaled_actions", PENDULUM, rng(), low=0.25, high=0.5)
    assert 0.25 <= shift.scale <= 0.5
    env, plain = vector(PENDULUM, shift), vector(PENDULUM, envs.NO_SHIFT)
    env.reset()
    plain.reset()
    for action in np.linspace(-1, 1, 20, dtype=np.float32):
        actions = np.full((2, 1), action)
        assert np.array_equal(
            env.step(actions).obs, plain.step(actions * np.float32(shift.scale)).obs
        )


@pytest.mark.parametrize("spec", [CARTPOLE, PENDULUM])
def test_late_actions_are_those_of_some_steps_ago_and_none_at_an_episodes_start(
    spec: envs.EnvSpec,
):
    options = {"max_episode_steps": 12}
    env = vector(spec, envs.Shift(delay=3), **options)
    plain = vector(spec, envs.NO_SHIFT, **options)
    env.reset()
    plain.reset()
    noop = np.zeros(
        (2,) if spec.action_dim is None else (2, 1),
        np.int64 if spec.action_dim is None else np.float32,
    )
    late, draws = [noop] * 3, rng(7)
    for step in range(60):
        chosen = draws.integers(2, size=2)
        actions = chosen if spec.action_dim is None else chosen[:, None].astype(np.float32) - 0.5
        late.append(actions)
        one, two = env.step(actions), plain.step(late.pop(0))
        assert np.array_equal(one.obs, two.obs), step
        ended = one.terminated | one.truncated
        late = [np.where(ended if noop.ndim == 1 else ended[:, None], noop, a) for a in late]
    assert set(draw_shift("delayed_actions", spec, rng(i), most=2).delay for i in range(20)) == {
        1,
        2,
    }


def test_late_actions_are_part_of_the_state():
    env = vector(CARTPOLE, envs.Shift(delay=2))
    env.reset()
    env.step(np.array([1, 1]))
    state = env.state_dict()
    after = [env.step(np.array([0, 1])).obs for _ in range(3)]
    env.load_state_dict(state)
    assert all(np.array_equal(env.step(np.array([0, 1])).obs, obs) for obs in after)


@pytest.mark.parametrize("name", ["gravity", "friction"])
def test_factors_are_log_uniform_in_their_range(name: str):
    shifts = [draw_shift(name, PENDULUM, rng(i), low=0.5, high=2.0) for i in range(2000)]
    factors = np.log2([shift.factors[name] for shift in shifts])
    assert factors.min() > -1 and factors.max() < 1
    assert factors.mean() == pytest.approx(0, abs=0.1)
    assert np.quantile(factors, 0.25) == pytest.approx(-0.5, abs=0.07)


@pytest.mark.parametrize(
    ("name", "spec", "says"),
    [
        ("shifted_observations", BREAKOUT, "observations of env 'minatar/breakout' are pictures"),
        ("permuted_observations", SCREEN, "observations of env 'one/screen' have one channel"),
        ("scaled_actions", CARTPOLE, "actions of env 'gym/CartPole-v1' are integers"),
    ],
)
def test_shift_that_does_not_go_with_an_environment_is_refused(
    name: str, spec: envs.EnvSpec, says: str
):
    params = {key: default for key, (default, _) in envs.SHIFTS[name].items()}
    with pytest.raises(ValueError, match=says):
        draw_shift(name, spec, rng(), **params)


# The constants.


def moved(env_id: str, steps: int = 20, **options: Any) -> np.ndarray:
    env = envs.make(env_id, rng(3), **options)
    env.reset()
    action = 1 if env.spec.action_dim is None else np.full(env.spec.action_dim, 0.2, np.float32)
    seen = [env.step(action)[0] for _ in range(steps)]
    env.close()
    return np.array(seen)


@pytest.mark.parametrize("env_id", ["gym/CartPole-v1", "gym/MountainCar-v0", "gym/Pendulum-v1"])
def test_gravity_of_classic_tasks(env_id: str):
    assert np.array_equal(moved(env_id, 5), moved(env_id, 5, gravity=1.0))
    assert not np.array_equal(moved(env_id, 5), moved(env_id, 5, gravity=2.0))


def test_pendulum_falls_by_its_own_equation_under_another_gravity():
    env = envs.make("gym/Pendulum-v1", rng(3), gravity=0.5)
    _, sin, speed = env.reset()
    obs, *_ = env.step(np.zeros(1, np.float32))
    assert obs[2] == pytest.approx(speed + 3 * 5.0 / 2 * sin * 0.05, abs=1e-5)  # g is 10 × 0.5


@pytest.mark.parametrize(
    "env_id", ["gym/Acrobot-v1", "gym/MountainCarContinuous-v0", "minatar/freeway"]
)
def test_constants_that_an_environment_lacks_are_refused_by_name(env_id: str):
    with pytest.raises(ValueError, match=f"option 'gravity' of env '{env_id}' is unknown"):
        envs.spec(env_id, gravity=2.0)
    with pytest.raises(ValueError, match="option 'friction' of env 'gym/CartPole-v1' is unknown"):
        envs.spec("gym/CartPole-v1", friction=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["gym/Hopper-v5", "dmc/walker-walk"])
@pytest.mark.parametrize("constant", ["gravity", "friction"])
def test_constants_of_mujoco_stay_through_episodes_and_states(env_id: str, constant: str):
    pytest.importorskip("dm_control" if env_id.startswith("dmc") else "mujoco")
    plain, same, other = (
        moved(env_id, 30, terminate=False, **options)
        for options in ({}, {constant: 1.0}, {constant: 0.3})
    )
    assert np.array_equal(plain, same)
    assert not np.array_equal(plain, other)
    env = envs.make(env_id, rng(3), terminate=False, **{constant: 0.3})
    env.reset()
    state = env.state_dict()
    action = np.zeros(env.spec.action_dim or 1, np.float32)
    after = [env.step(action)[0] for _ in range(30)]
    env.reset()
    env.load_state_dict(state)
    assert all(np.array_equal(env.step(action)[0], obs) for obs in after)
    env.close()
