"""Environments of several tasks in one space."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from rlplast import envs

CARTPOLE, ACROBOT = envs.spec("gym/CartPole-v1"), envs.spec("gym/Acrobot-v1")
BREAKOUT, SEAQUEST = envs.spec("minatar/breakout"), envs.spec("minatar/seaquest")
HOPPER, ANT = envs.spec("gym/Hopper-v5"), envs.spec("gym/Ant-v5")
ASTERIX = envs.spec("atari/Asterix")


def rngs(n: int) -> list[np.random.Generator]:
    return [np.random.default_rng(i) for i in range(n)]


def test_union_is_as_wide_as_the_widest():
    joined = envs.join_specs([CARTPOLE, ACROBOT])
    assert (joined.obs_shape, joined.num_actions) == ((6,), 3)
    joined = envs.join_specs([BREAKOUT, SEAQUEST])
    assert (joined.obs_shape, joined.num_actions) == ((10, 10, 10), 6)
    joined = envs.join_specs([HOPPER, ANT])
    assert (joined.obs_shape, joined.num_actions, joined.action_dim) == ((105,), None, 8)
    assert joined.id == "gym/Hopper-v5+gym/Ant-v5"
    assert envs.join_specs([ANT, ANT]) == ANT


def test_what_cannot_be_joined_is_refused_by_name():
    def changed(spec: envs.EnvSpec, **changes: Any) -> envs.EnvSpec:
        return dataclasses.replace(spec, id="x", **changes)

    for one, other, says in (
        (CARTPOLE, BREAKOUT, r"\(4,\) and \(4, 10, 10\)"),
        (CARTPOLE, HOPPER, "actions"),
        (ASTERIX, changed(ASTERIX, obs_shape=(96, 96)), r"\(84, 84\) and \(96, 96\)"),
        # Rows are no channels.
        (ASTERIX, changed(ASTERIX, obs_shape=(96, 84)), r"\(84, 84\) and \(96, 84\)"),
        (ASTERIX, changed(ASTERIX, frame_stack=2), "frame_stack is 4 and 2"),
        (BREAKOUT, changed(BREAKOUT, obs_dtype="float32"), "obs_dtype"),
        (BREAKOUT, changed(BREAKOUT, clip_rewards=True), "clip_rewards"),
        (BREAKOUT, changed(BREAKOUT, obs_scale=0.5), "obs_scale is 1.0 and"),
        (ASTERIX, envs.spec("atari/Pong", repeat_first=True), "repeat_first"),
    ):
        with pytest.raises(ValueError, match=rf"'{one.id}' and '{other.id}' cannot .*: .*{says}"):
            envs.join_specs([one, one, other])


def test_missing_coordinates_and_channels_are_zero_and_the_others_as_they_are():
    for own, joined in (
        (CARTPOLE, envs.join_specs([CARTPOLE, ACROBOT])),
        (BREAKOUT, envs.join_specs([BREAKOUT, SEAQUEST])),
    ):
        wide = envs.TaskVector(envs.make_vector(own.id, rngs(2)), joined, envs.NO_SHIFT)
        plain = envs.make_vector(own.id, rngs(2))
        size = own.obs_shape[0]
        seen, obs = wide.reset(), plain.reset()
        for _ in range(40):
            assert seen.shape == (2, *joined.obs_shape)
            assert seen.dtype == obs.dtype
            assert np.array_equal(seen[:, :size], obs)
            assert not seen[:, size:].any()
            one, two = wide.step(np.array([1, 0])), plain.step(np.array([1, 0]))
            assert np.array_equal(one.obs_final[:, :size], two.obs_final)
            seen, obs = one.obs, two.obs


def test_actions_and_entries_that_a_task_lacks_are_action_0_and_ignored():
    def both(spec: envs.EnvSpec, joined: envs.EnvSpec) -> tuple[Any, Any]:
        plain, wide = (envs.make_vector(spec.id, rngs(2)) for _ in range(2))
        wide = envs.TaskVector(wide, joined, envs.NO_SHIFT)
        wide.reset(), plain.reset()
        return wide, plain

    wide, plain = both(CARTPOLE, envs.join_specs([CARTPOLE, ACROBOT]))
    for step in range(8):
        padded, known = np.array([2, step % 2]), np.array([0, step % 2])
        assert np.array_equal(wide.step(padded).obs[:, :4], plain.step(known).obs)
    pendulum = envs.spec("gym/Pendulum-v1")
    wide, plain = both(pendulum, dataclasses.replace(pendulum, action_dim=3))
    for entry in (0.5, -1.0, 0.2):
        padded = np.array([[entry, 0.9, -0.3], [-entry, 0.9, -0.3]], np.float32)
        assert np.array_equal(wide.step(padded).obs, plain.step(padded[:, :1]).obs)


def test_bar_of_success_is_the_tasks_own():
    own = dataclasses.replace(CARTPOLE, success_return=400.0)
    made = envs.make_vector(CARTPOLE.id, rngs(1))
    made.spec = own
    joined = envs.join_specs([ACROBOT, own])
    assert joined.success_return is None
    assert envs.TaskVector(made, joined, envs.NO_SHIFT).spec.success_return == 400.0
