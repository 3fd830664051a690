import json
import re
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from rlplast import envs
from rlplast.envs.base import load_rng_state, plain, rng_state
from tests.envs.checks import generator, through_files


def test_an_unknown_id_names_the_nearest_or_says_what_there_is() -> None:
    for unknown, hint in (
        ("atari/Asterxi", r"did you mean 'atari/Asterix'\?$"),
        ("minatar/Breakout", r"did you mean 'minatar/breakout'\?$"),
        ("SpaceInvaders", r"did you mean 'atari/SpaceInvaders'\?$"),
        ("toy/switching_frozenlake", r"did you mean 'toy/switching_frozen_lake'\?$"),
        ("humanoid_bench/h1touch-push-v0", "did you mean 'humanoid_bench/h1.*-push-v0'"),
        ("gym/CartPole", r"did you mean 'gym/CartPole-v1'\? Else an environment of your own"),
        ("gym/Drift-v0", "an environment of your own"),  # "gym/Ant-v5" has six of its letters
        ("zzz", r"ids start with atari/,.* gym/,.* minatar/"),
    ):
        for build in (envs.spec, lambda env_id: envs.make(env_id, generator(0))):
            with pytest.raises(envs.UnknownEnv, match=f"^env id '{unknown}' is unknown: {hint}"):
                build(unknown)


LAKE = "toy/switching_frozen_lake"
BAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("atari/Pong", {"stick": 0.1}, "'stick' .* 'sticky'"),
    ("gym/CartPole-v1", {"sticky": 0.1}, "'sticky' .* allowed: max_episode_steps"),
    *(("minatar/freeway", {"sticky": x}, f"is {x}: allowed is") for x in (1.0, -0.1)),
    *(("atari/Pong", {"frame_skip": x}, f"is {x}: allowed is") for x in (0, None, 2.5, True)),
    ("gym/Acrobot-v1", {"max_episode_steps": True}, "is True: allowed is integer >= 1, null"),
    ("gym/Hopper-v5", {"terminate": 1}, "'terminate' .* is 1"),
    *((LAKE, {"size": x}, rf"size.* {x}.*\[2, 8\]") for x in (1, 9, 2.5)),
    *(("gym/CartPole-v1", {"gravity": x}, f"'gravity' .* is {x}") for x in (0, -1, True)),
    # Constants that an environment lacks.
    *((env_id, {"gravity": 2.0}, "'gravity' .* unknown") for env_id in ("gym/Acrobot-v1", LAKE)),
    ("gym/MountainCarContinuous-v0", {"gravity": 2.0}, "'gravity' .* unknown"),
    ("gym/CartPole-v1", {"friction": 2.0}, "'friction' .* unknown"),
]


def test_a_bad_option_names_what_is_allowed() -> None:
    for env_id, options, message in BAD_OPTIONS:
        with pytest.raises(ValueError, match=message):
            envs.make(env_id, generator(0), **options)


@pytest.mark.parametrize(
    ("package", "env_id", "install"),
    [
        ("minatar", "minatar/asterix", "rlplast[minatar]"),
        ("mujoco", "gym/Hopper-v5", "rlplast[mujoco]"),
        ("imageio", "gym/Hopper-v5", "rlplast[mujoco]"),
        ("dm_control", "dmc/humanoid-walk", "rlplast[dmc]"),
        ("mujoco", "dmc/humanoid-walk", "rlplast[dmc]"),
    ],
)
def test_a_missing_package_names_the_command_but_stays_listed(
    monkeypatch: pytest.MonkeyPatch, package: str, env_id: str, install: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(envs.MissingPackage, match=re.escape(f"'{install}'")):
        envs.make(env_id, generator(0))
    assert envs.spec(env_id).id == env_id
    assert env_id in {row["name"] for row in envs.list_envs()}


def test_rows_are_complete_and_their_defaults_are_accepted() -> None:
    rows = envs.list_envs()
    assert json.loads(json.dumps(rows)) == rows
    assert len({row["name"] for row in rows}) == len(rows)
    families = Counter(row["name"].split("/")[0] for row in rows)
    assert (families["atari"], families["minatar"], families["gym"]) == (104, 5, 5 + 11)
    for row in rows:
        assert list(row) == ["name", "family", "summary", "params", "source", "from"]
        assert row["family"] == "envs"
        defaults = {name: param["default"] for name, param in row["params"].items()}
        assert envs.spec(row["name"], **defaults) == envs.spec(row["name"])


def test_a_generator_continues_from_its_stored_state() -> None:
    for kind in ("PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937"):
        rng, other = (np.random.Generator(getattr(np.random, kind)(seed)) for seed in (1, 2))
        rng.integers(10, size=3, dtype=np.uint32)  # leaves half a word behind
        load_rng_state(other, through_files(rng_state(rng)))
        draws = [[*g.integers(2**32, size=9, dtype=np.uint32), *g.random(5)] for g in (other, rng)]
        assert draws[0] == draws[1], kind
    state = rng_state(np.random.Generator(np.random.Philox(0)))
    with pytest.raises(ValueError, match="a Philox state cannot continue a PCG64 generator"):
        load_rng_state(generator(0), state)


def test_actions_are_of_exactly_one_kind() -> None:
    for num_actions, action_dim in ((None, None), (3, 3), (0, None), (None, 0)):
        with pytest.raises(ValueError, match=r"'mine/x' has num_actions .* exactly one"):
            envs.EnvSpec("mine/x", (2,), "float32", 1, num_actions, 1, None, action_dim)


def test_what_files_cannot_hold_is_no_state() -> None:
    arrays = [np.zeros(2, kind) for kind in ("O", "U2", "S2", "M8[D]", "f4,f4", np.longdouble)]
    for value in ((1, 2), {1: 2}, {3}, object(), 1j, np.datetime64("2026"), *arrays):
        with pytest.raises(TypeError, match=r"state\['key'\]\[0\].* a state can(not)? hold"):
            plain({"key": [value]})
    found = plain(np.arange(3, dtype=">i4"))  # numbers of any byte order can
    np.testing.assert_array_equal(found, np.arange(3, dtype="i4"), strict=True)
    assert found.dtype.isnative
