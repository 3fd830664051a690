import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rlplast import envs
from rlplast.envs import custom
from tests.envs import own_envs
from tests.envs.checks import (
    assert_continues_after_restore,
    generator,
    play,
    random_actions,
)


def begin(twin: gymnasium.Env, seeds: np.random.Generator) -> np.ndarray:
    return twin.reset(seed=int(seeds.integers(2**31)))[0]


def own(name: str) -> str:
    return f"gym/{own_envs.PREFIX}{name}-v0"


WALK, DISCRETE, FLATTENED = own("Walk"), own("WalkDiscrete"), own("Flattened")
OWN_MODULE = """
import gymnasium
from tests.envs.own_envs import Walk
gymnasium.register("{id}", "{module}:Walk", max_episode_steps=9)
"""


def test_steps_equal_the_environment_itself_with_seeds_from_the_generator() -> None:
    low, high = np.array([[-0.1], [0.0]]), np.array([[0.1], [0.3]])
    for env_id, kind in ((WALK, "box"), (DISCRETE, "discrete")):
        twin, seeds, ends = own_envs.Walk(kind), generator(5), 0
        env = envs.make(env_id, generator(5), max_episode_steps=30)
        np.testing.assert_array_equal(env.reset(), begin(twin, seeds).reshape(-1).astype("f4"))
        actions = random_actions(env_id, 100, seed=0)
        assert kind == "box" or set(actions) == {0, 1, 2, 3}
        for action in actions:
            native: Any = (low + (high - low) * (np.reshape(action, (-1, 1)) + 1) / 2).astype("f4")
            if kind == "discrete":
                native = np.int64(action) + 3
            obs, reward, terminated, truncated = env.step(action)
            obs_twin, reward_twin, terminated_twin, *_ = twin.step(native)
            np.testing.assert_allclose(obs, obs_twin.reshape(-1), atol=1e-6)
            assert reward == pytest.approx(reward_twin, abs=1e-5)
            assert terminated == terminated_twin
            if terminated or truncated:
                ends += 1
                first = begin(twin, seeds).reshape(-1).astype("f4")
                np.testing.assert_array_equal(env.reset(), first)
        assert ends >= 3


def test_restored_environments_continue_bit_for_bit() -> None:
    for env_id in (WALK, DISCRETE, FLATTENED):
        assert_continues_after_restore(env_id, 47, 150, min_ends=2, max_episode_steps=35)


def test_wrappers_of_the_entry_point_stay_and_keep_their_state() -> None:
    env = envs.make(FLATTENED, generator(0))
    env.reset()
    rewards = [step[1] for step in play(env, random_actions(FLATTENED, 4, seed=0))]
    plain = envs.make(WALK, generator(0))
    plain.reset()
    expected = [step[1] for step in play(plain, random_actions(WALK, 4, seed=0))]
    assert rewards == [expected[0], expected[1], 2 * expected[2], expected[3]]
    assert env.state_dict()["simulator"]["layers"][0] == {"count": 4}


def test_entry_points_without_a_name_draw_nothing_and_run_in_no_worker() -> None:
    gymnasium.register("RlplastNameless-v0", lambda: own_envs.Walk())
    nameless = "gym/RlplastNameless-v0"
    with pytest.raises(ValueError, match="'module:Class'"):
        envs.make_vector(nameless, [generator(0)], workers=1)
    for env_id in (nameless, own("Blind")):
        blind = envs.make(env_id, generator(0))
        blind.reset()
        with pytest.raises(envs.EnvFailed, match="'rgb_array'"):
            blind.render()
    drawn = envs.make(WALK, generator(0))
    drawn.reset()
    assert drawn.render().shape == (4, 6, 3)


def with_(**changed: Any) -> Callable[[tuple[Any, ...]], Any]:
    names = ("obs", "reward", "terminated", "truncated", "info")
    return lambda found: tuple(changed.get(k, v) for k, v in zip(names, found, strict=True))


def raising(kind: type[BaseException]) -> Callable[[Any], Any]:
    def change(found: Any) -> Any:
        raise kind("wheel")

    return change


KINDS = (ValueError, TypeError, AssertionError, KeyError, ImportError)
PICTURES = (np.zeros((4, 6, 3)), *(np.zeros(s, "u1") for s in ((4, 6), (4, 6, 4), (0, 0, 3))))
BAD: list[tuple[str, Callable[[Any], Any], str]] = [
    ("reset", lambda found: found[0], r"old Gym, let reset\("),
    ("reset", lambda found: (np.zeros(3), {}), "its observation_space"),
    ("step", lambda found: found[:4], "Gymnasium's five"),
    ("step", with_(obs=np.zeros(3)), "its observation_space"),
    *(("step", with_(reward=x), "reward") for x in (1j, np.complex128(1), np.array("x"), 10**400)),
    *(("step", with_(terminated=x), "as terminated") for x in ("no", None, float("nan"))),
    ("step", with_(truncated=np.array([False, True])), "as truncated"),
    *(("render", lambda found, own=own: own, "allowed is uint8") for own in PICTURES),
    *(("step", raising(k), rf"environment 0 of .*step\(\) raised {k.__name__}") for k in KINDS),
    *((m, raising(KeyError), rf"{m}\(\) raised KeyError: 'wheel'") for m in ("reset", "render")),
]


def changed(patch: pytest.MonkeyPatch, method: str, change: Callable[[Any], Any]) -> None:
    old = getattr(own_envs.Walk, method)
    patch.setattr(own_envs.Walk, method, lambda *args, **keys: change(old(*args, **keys)))


def test_what_an_environment_must_not_return_or_raise_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vector, zeros = envs.make_vector(WALK, [generator(0)]), np.zeros((1, 2), np.float32)
    for method, change, message in BAD:
        vector.reset()
        with monkeypatch.context() as patch, pytest.raises(envs.EnvFailed, match=message):
            changed(patch, method, change)
            getattr(vector, method)(*[zeros] * (method == "step"))
            pytest.fail(f"{method}: {message}")
    for allowed in ({"reward": np.bool_(True)}, {"truncated": np.array(0)}):
        with monkeypatch.context() as patch:
            changed(patch, "step", with_(**allowed))
            vector.step(zeros)


def test_arrays_that_it_is_lent_and_lends_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    canvas, given, old = np.zeros((4, 6, 3), np.uint8), [], own_envs.Walk.step

    def step(self: Any, action: np.ndarray) -> Any:
        found = old(self, action)
        given.append(action.copy())
        action *= 0
        return found

    def render(self: Any) -> np.ndarray:
        canvas[:] += 1
        return canvas

    monkeypatch.setattr(own_envs.Walk, "step", step)
    monkeypatch.setattr(own_envs.Walk, "render", render)
    vector = envs.make_vector(WALK, [generator(0)], action_repeat=3)
    vector.reset()
    vector.step(np.ones((1, 2), np.float32))
    assert [action.tolist() for action in given[-3:]] == [given[-1].tolist()] * 3
    assert given[-1].any()
    assert [int(vector.render().max()) for _ in range(2)] == [1, 2]
    first, second = vector.render(), vector.render()
    assert (first.max(), second.max()) == (3, 4)


def test_an_environment_may_end_its_episodes_itself_and_say_then_whether_they_succeeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = iter([1, 0, True, 1, 1, np.float32(0), None, 1, None])  # of three steps an episode
    vector = envs.make_vector(own("SelfTruncating"), [generator(0)])
    vector.reset()
    old = own_envs.SelfTruncating.step
    says = lambda *args: (*old(*args)[:4], {"is_success": next(said)})  # noqa: E731
    monkeypatch.setattr(own_envs.SelfTruncating, "step", says)
    steps = [vector.step(np.zeros((1, 2), np.float32)) for _ in range(9)]
    assert [bool(step.truncated[0]) for step in steps] == [False, False, True] * 3
    expected = [np.nan, np.nan, 1, np.nan, np.nan, 0, np.nan, np.nan, np.nan]
    np.testing.assert_array_equal([step.success[0] for step in steps], expected)


def test_what_wrappers_have_learnt_is_taken_over_and_frozen() -> None:
    env_id, zeros = own("Normalised"), np.zeros((2, 2), np.float32)
    trained = envs.make_vector(env_id, [generator(0), generator(1)])
    trained.reset()
    for _ in range(60):
        trained.step(zeros)
    learned = trained.learned()
    assert str(learned[0]) != str(learned[1]) and all(one[0]["count"] > 60 for one in learned)
    fresh = envs.make_vector(env_id, [generator(5), generator(6)], workers=1)
    fresh.take_over(learned, freeze=True)
    twins = [own_envs.Walk() for _ in range(2)]
    obs = fresh.reset()
    raws = [begin(twin, generator(5 + i)) for i, twin in enumerate(twins)]
    for one, raw, (kept,) in zip(obs, raws, learned, strict=True):
        normal = (raw - kept["mean"]) / np.sqrt(kept["var"] + 1e-8)
        np.testing.assert_allclose(one, normal.reshape(-1), rtol=1e-6)
    for _ in range(30):
        fresh.step(zeros)
    assert str(fresh.learned()) == str(learned)
    fresh.close()


def test_wrappers_of_the_registration_see_the_step_limit() -> None:
    options: Any = {"action_repeat": 4}
    for given, limit in (({}, 10), ({"max_episode_steps": 5}, 20)):
        env = envs.make(own("Aware"), generator(0), **options, **given)
        times, done = [float(env.reset()[-1])], False
        while not done:
            obs, _, terminated, done = env.step(np.zeros(2, np.float32))
            assert not terminated
            times.append(float(obs[-1]))
        # Of Gymnasium's own wrapper: the share of the limit that has passed.
        expected = [min(frames / limit, 1) for frames in range(0, limit + 4, 4)]
        np.testing.assert_allclose(times, expected, rtol=1e-6)


def test_arguments_reach_the_environment() -> None:
    assert envs.spec(WALK, kwargs={"actions": "discrete"}).num_actions == 4
    for wrong, message in (([1], "option 'kwargs' .*mapping"), ({"wind": 1}, f"{WALK}.*'wind'")):
        with pytest.raises(ValueError, match=message):
            envs.spec(WALK, kwargs=wrong)


def test_a_module_may_be_named_in_the_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = OWN_MODULE.format(id="RlplastNamed-v0", module="rlplast_named")
    (tmp_path / "rlplast_named.py").write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the current folder is added
    monkeypatch.chdir(tmp_path)
    assert envs.spec("gym/rlplast_named:RlplastNamed-v0").max_episode_steps == 9
    # Of an unknown name pip may find anybody's package.
    with pytest.raises(ImportError, match="'rlplast_absent'") as caught:
        envs.spec("gym/rlplast_absent:RlplastNamed-v0")
    assert "pip" not in str(caught.value)
    for name in ("", "..", "a b", "a/b"):
        with pytest.raises(envs.UnknownEnv, match="no module's name"):
            envs.spec(f"gym/{name}:RlplastNamed-v0")


def test_own_ids_are_suggested_but_not_listed() -> None:
    for given, there in (
        ("gym/Taxi-v3", r"'gym/Taxi-v4'\?"),
        ("gym/gymnasium:Taxi-v9", r"'gym/gymnasium:Taxi-v4'\?"),
        (WALK.replace("v0", "v7"), rf"'{WALK}'\?"),
        ("gym/NobodysName-v0", "environment of your own is gym/<"),
    ):
        with pytest.raises(envs.UnknownEnv, match=there):
            envs.spec(given)
    assert WALK in custom.own_ids() and "gym/CartPole-v0" not in custom.own_ids()
    assert WALK not in {row["name"] for row in envs.list_envs()}


def test_what_an_environment_raises_as_it_closes_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in (ValueError, SystemExit, GeneratorExit):
        vector = envs.make_vector(WALK, [generator(0)])
        with monkeypatch.context() as patch, pytest.warns(UserWarning, match="wheel"):
            patch.setattr(own_envs.Walk, "close", raising(kind))
            vector.close()


def test_a_state_with_other_wrappers_or_that_files_cannot_hold_is_refused() -> None:
    env, other = envs.make(WALK, generator(0)), envs.make(own("TupleState"), generator(0))
    env.reset(), other.reset()
    state: Any = envs.make(FLATTENED, generator(0)).state_dict() | {"id": WALK}
    with pytest.raises(ValueError, match="other wrappers"):
        env.load_state_dict(state)
    state = other.state_dict()
    assert not state["running"] and "(1, 2) of type tuple" in state["untold"]
