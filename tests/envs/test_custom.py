import dataclasses
import importlib
import sys
from collections.abc import Iterator
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
    assert_same_states,
    generator,
    play,
    random_actions,
)


def begin(twin: gymnasium.Env, seeds: np.random.Generator) -> np.ndarray:
    return twin.reset(seed=int(seeds.integers(2**31)))[0]


def own(name: str) -> str:
    return f"gym/{own_envs.PREFIX}{name}-v0"


WALK, DISCRETE, FLATTENED = own("Walk"), own("WalkDiscrete"), own("Flattened")


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    before = dict(gymnasium.registry)
    own_envs.register()
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_a_registered_environment_is_described_by_its_spaces() -> None:
    spec = envs.spec(WALK)
    assert (spec.obs_shape, spec.obs_dtype) == ((4,), "float32")
    assert (spec.num_actions, spec.action_dim) == (None, 2)
    assert (spec.max_episode_steps, spec.frames_per_step) == (50, 1)
    assert envs.spec(WALK, action_repeat=4).max_episode_steps == 13
    discrete = envs.spec(DISCRETE)
    assert (discrete.num_actions, discrete.action_dim) == (4, None)
    assert discrete.max_episode_steps is None
    assert envs.make(WALK, generator(0)).spec == spec


def test_steps_equal_the_environment_itself_with_seeds_from_the_generator() -> None:
    for env_id, kind in ((WALK, "box"), (DISCRETE, "discrete")):
        twin, seeds = own_envs.Walk(kind), generator(5)
        env = envs.make(env_id, generator(5), max_episode_steps=30)
        low, high = np.array([[-0.1], [0.0]]), np.array([[0.1], [0.3]])
        np.testing.assert_array_equal(env.reset(), begin(twin, seeds).reshape(-1).astype("f4"))
        actions = random_actions(env_id, 100, seed=0)
        assert kind == "box" or set(actions) == {0, 1, 2, 3}
        ends = 0
        for action in actions:
            native = (
                np.int64(action) + 3
                if kind == "discrete"
                else (low + (high - low) * (np.float64(action)[:, None] + 1) / 2).astype("f4")
            )
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


@pytest.mark.parametrize("env_id", [WALK, DISCRETE, FLATTENED])
@pytest.mark.parametrize("used", [False, True])
def test_restored_environments_continue_bit_for_bit(env_id: str, used: bool) -> None:
    options = {"max_episode_steps": 35}
    assert_continues_after_restore(env_id, 47, 150, min_ends=2, used=used, **options)


def test_wrappers_of_the_entry_point_stay_and_keep_their_state() -> None:
    env = envs.make(FLATTENED, generator(0))
    env.reset()
    rewards = [step[1] for step in play(env, random_actions(FLATTENED, 4, seed=0))]
    plain = envs.make(WALK, generator(0))
    plain.reset()
    expected = [step[1] for step in play(plain, random_actions(WALK, 4, seed=0))]
    assert rewards == [expected[0], expected[1], 2 * expected[2], expected[3]]
    assert env.state_dict()["simulator"]["layers"][0] == {"count": 4}


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_build_what_only_the_parent_registered(workers: int) -> None:
    rngs = [generator(seed) for seed in range(2)]
    vector = envs.make_vector(WALK, rngs, workers=workers, action_repeat=2)
    single = envs.make(WALK, generator(1), action_repeat=2)
    np.testing.assert_array_equal(vector.reset()[1], single.reset())
    for action in random_actions(WALK, 20, seed=0):
        step = vector.step(np.stack([action, action]))
        obs, reward, *_ = single.step(action)
        np.testing.assert_array_equal(step.obs_final[1], obs)
        assert step.reward[1] == np.float32(reward)
        if step.terminated[1] or step.truncated[1]:
            single.reset()
    assert_same_states(vector.state_dict()["envs"][1], single.state_dict())
    vector.close()


def test_a_module_that_registers_its_environment_may_be_imported_after_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "rlplast_registers_itself"
    (tmp_path / f"{module}.py").write_text(
        "import gymnasium\nfrom tests.envs.own_envs import Walk\n"
        f"gymnasium.register('RlplastSelf-v0', '{module}:Walk', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(module)
    record = gymnasium.registry.pop("RlplastSelf-v0")
    monkeypatch.delitem(sys.modules, module)  # as in a worker
    own_record = dataclasses.replace(record, max_episode_steps=7)
    custom.register_again(own_record)
    assert envs.make("gym/RlplastSelf-v0", generator(0)).spec.max_episode_steps == 7


def test_an_entry_point_without_a_name_cannot_run_in_workers() -> None:
    gymnasium.register("RlplastNameless-v0", lambda: own_envs.Walk())
    rngs = [generator(0)]
    envs.make_vector("gym/RlplastNameless-v0", rngs).reset()
    with pytest.raises(ValueError, match=r"cannot run in worker processes .* 'module:Class'"):
        envs.make_vector("gym/RlplastNameless-v0", rngs, workers=1)


def test_pictures_are_the_environments_own() -> None:
    env = envs.make(WALK, generator(0))
    env.reset()
    assert env.render().shape == (4, 6, 3)
    gymnasium.register("RlplastNameless-v0", lambda: own_envs.Walk())
    for env_id in ("gym/RlplastNameless-v0", own("Blind")):
        blind = envs.make(env_id, generator(0))
        blind.reset()
        with pytest.raises(envs.EnvFailed, match="has no pictures: they need 'rgb_array'"):
            blind.render()


def test_a_state_that_files_cannot_hold_is_named() -> None:
    env = envs.make(own("TupleState"), generator(0))
    env.reset()
    state = env.state_dict()
    assert not state["running"] and "state cannot hold (1, 2) of type tuple" in state["untold"]


def test_what_returns_other_than_five_values_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    env = envs.make(WALK, generator(0))
    env.reset()
    old = own_envs.Forgetful.step
    monkeypatch.setattr(own_envs.Forgetful, "step", lambda *args: old(*args)[:4])
    with pytest.raises(
        envs.EnvFailed, match=r"step\(\) of env .*Walk-v0' returned 4 values: allowed"
    ):
        env.step(np.zeros(2, np.float32))


def old_reset(self: Any) -> Any:
    return self.place


@pytest.mark.parametrize(
    "reset", [old_reset, lambda self, seed=None, options=None: old_reset(self)]
)
def test_what_was_written_for_the_old_gym_says_what_to_do(
    reset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = envs.make_vector(WALK, [generator(0)])
    monkeypatch.setattr(own_envs.Forgetful, "reset", reset)
    with pytest.raises(envs.EnvFailed, match=r"old Gym, let reset\(.*return \(observation, info"):
        vector.reset()


@pytest.mark.parametrize("kind", [ValueError, TypeError, AssertionError, KeyError, ImportError])
@pytest.mark.parametrize("method", ["reset", "step", "render"])
def test_an_error_of_its_own_names_the_environment_whatever_its_type(
    kind: type[Exception], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = envs.make_vector(WALK, [generator(0), generator(1)])
    vector.reset()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise kind("wheel")

    monkeypatch.setattr(own_envs.Forgetful, method, fail)
    place = rf"environment 0 of '{WALK}': {method}\(\) raised {kind.__name__}: '?wheel"
    with pytest.raises(envs.EnvFailed, match=place):
        if method == "step":
            vector.step(np.zeros((2, 2), np.float32))
        else:
            getattr(vector, method)()


def test_arrays_that_it_is_lent_and_lends_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    canvas, given, old = np.zeros((4, 6, 3), np.uint8), [], own_envs.Forgetful.step

    def step(self: Any, action: np.ndarray) -> Any:
        found = old(self, action)
        given.append(action.copy())
        action *= 0
        return found

    def render(self: Any) -> np.ndarray:
        canvas[:] += 1
        return canvas

    monkeypatch.setattr(own_envs.Forgetful, "step", step)
    monkeypatch.setattr(own_envs.Forgetful, "render", render)
    vector = envs.make_vector(WALK, [generator(0)], action_repeat=3)
    vector.reset()
    vector.step(np.ones((1, 2), np.float32))
    assert [action.tolist() for action in given[-3:]] == [given[-1].tolist()] * 3
    assert given[-1].any()
    assert [int(vector.render().max()) for _ in range(2)] == [1, 2]
    first, second = vector.render(), vector.render()
    assert (first.max(), second.max()) == (3, 4)


def test_an_environment_may_truncate_its_episodes_itself() -> None:
    env, twin = envs.make(own("SelfTruncating"), generator(0)), own_envs.SelfTruncating()
    env.reset(), begin(twin, generator(0))
    zeros, native = np.zeros(2, np.float32), np.array([[0], [0.15]], "f4")
    for _ in range(3):
        assert env.step(zeros)[2:] == twin.step(native)[2:4]
    with pytest.raises(RuntimeError, match="has no episode running"):
        env.step(zeros)


def test_what_an_episode_says_of_its_success_comes_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, said = own_envs.SelfTruncating.step, iter([1, 0, True, 1, 1, np.float32(0), None, 1, None])

    def step(self: Any, action: Any) -> Any:  # of three steps an episode
        *found, info = old(self, action)
        return *found, info | {"is_success": next(said)}

    vector = envs.make_vector(own("SelfTruncating"), [generator(0)])
    vector.reset()
    monkeypatch.setattr(own_envs.SelfTruncating, "step", step)
    found = [float(vector.step(np.zeros((1, 2), np.float32)).success[0]) for _ in range(9)]
    expected = [np.nan, np.nan, 1, np.nan, np.nan, 0, np.nan, np.nan, np.nan]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_wrappers_have_learnt_is_taken_over_and_frozen(workers: int) -> None:
    env_id, zeros = own("Normalised"), np.zeros((2, 2), np.float32)
    trained = envs.make_vector(env_id, [generator(0), generator(1)], workers)
    trained.reset()
    for _ in range(60):
        trained.step(zeros)
    learned = trained.learned()
    assert str(learned[0]) != str(learned[1]) and all(one[0]["count"] > 60 for one in learned)
    fresh = envs.make_vector(env_id, [generator(5), generator(6)], workers)
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
    trained.close()
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
    with pytest.raises(ValueError, match=r"option 'kwargs' of env .* is \[1\]: allowed is mapping"):
        envs.spec(WALK, kwargs=[1])


def test_an_environment_that_cannot_be_made_is_named() -> None:
    with pytest.raises(ValueError, match=rf"env '{WALK}' cannot be made: .*unexpected.*'wind'"):
        envs.spec(WALK, kwargs={"wind": 1})


def test_a_module_may_be_named_in_the_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rlplast_named.py").write_text(
        "import gymnasium\nfrom tests.envs.own_envs import Walk\n"
        "gymnasium.register('RlplastNamed-v0', 'rlplast_named:Walk', max_episode_steps=9)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the current folder is added
    monkeypatch.chdir(tmp_path)
    assert envs.spec("gym/rlplast_named:RlplastNamed-v0").max_episode_steps == 9
    # Of an unknown name pip may find anybody's package.
    with pytest.raises(ImportError, match=r"no module 'rlplast_absent'.* folder") as caught:
        envs.spec("gym/rlplast_absent:RlplastNamed-v0")
    assert "pip" not in str(caught.value)
    for name in ("", "..", "a b", "a/b"):
        with pytest.raises(envs.UnknownEnv, match="is no module's name"):
            envs.spec(f"gym/{name}:RlplastNamed-v0")


@pytest.mark.parametrize("given", ["Taxi-v3", "gymnasium:Taxi-v9"])
def test_of_another_version_than_is_registered_that_one_is_named(given: str) -> None:
    there = given[:-1] + "4"
    with pytest.raises(envs.UnknownEnv, match=rf"is unknown: did you mean 'gym/{there}'\?$"):
        envs.spec(f"gym/{given}")
    with pytest.raises(envs.UnknownEnv, match=rf"is unknown: did you mean '{WALK}'\?$"):
        envs.spec(WALK.replace("v0", "v7"))
    with pytest.raises(envs.UnknownEnv, match=r"environment of your own is gym/<its id in"):
        envs.spec("gym/NobodysName-v0")


def test_an_environment_that_returns_other_observations_than_it_says_is_named() -> None:
    with pytest.raises(
        envs.EnvFailed, match=r"Liar-v0' returned the observation .*\(3,\).*, its obs"
    ):
        envs.make(own("Liar"), generator(0)).reset()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("reward", np.complex128(1), "returned .* as a reward: allowed is one number"),
        ("reward", np.array("x"), "returned .* as a reward: allowed is one number"),
        ("reward", 10**400, "returned .* as a reward: allowed is one number"),
        ("reward", np.bool_(True), None),
        ("terminated", "no", "returned 'no' as terminated: allowed are True and False"),
        ("terminated", None, "returned None as terminated: allowed"),
        ("terminated", float("nan"), "returned nan as terminated: allowed"),
        ("truncated", np.array([False, True]), "returned .* as truncated: allowed are True"),
        ("truncated", np.array(0), None),
    ],
)
def test_rewards_are_numbers_and_ends_true_or_false(
    name: str, value: Any, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = envs.make(WALK, generator(0))
    env.reset()
    old, place = own_envs.Forgetful.step, {"reward": 1, "terminated": 2, "truncated": 3}[name]

    def step(*args: Any) -> Any:
        found = list(old(*args))
        found[place] = value
        return tuple(found)

    monkeypatch.setattr(own_envs.Forgetful, "step", step)
    if message is None:
        env.step(np.zeros(2, np.float32))
        return
    with pytest.raises(envs.EnvFailed, match=rf"env '{WALK}' {message}"):
        env.step(np.zeros(2, np.float32))


@pytest.mark.parametrize(
    "picture",
    [np.zeros((4, 6, 3)), *[np.zeros(s, "u1") for s in ((4, 6), (4, 6, 4), (0, 0, 3))]],
)
def test_pictures_are_bytes_in_colours(
    picture: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = envs.make_vector(WALK, [generator(0)])
    vector.reset()
    monkeypatch.setattr(own_envs.Forgetful, "render", lambda self: picture)
    with pytest.raises(
        envs.EnvFailed, match=r"render\(\) of env .* allowed is uint8 of shape \(heig"
    ):
        vector.render()
    monkeypatch.setattr(own_envs.Forgetful, "render", lambda self: 1 / 0)
    with pytest.raises(envs.EnvFailed, match=r"environment 0 of .*render\(\) raised ZeroDivision"):
        vector.render()


@pytest.mark.parametrize("raised", [ValueError, SystemExit, GeneratorExit])
def test_what_an_environment_raises_as_it_closes_is_a_warning(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(_: Any) -> None:
        raise raised("the wheel\ncame off")

    vector = envs.make_vector(WALK, [generator(0)])
    monkeypatch.setattr(own_envs.Walk, "close", close)
    with pytest.warns(UserWarning, match=r"the wheel\s+came off"):
        vector.close()


def test_a_state_with_other_wrappers_is_refused() -> None:
    env = envs.make(WALK, generator(0))
    env.reset()
    state: Any = envs.make(FLATTENED, generator(0)).state_dict() | {"id": WALK}
    with pytest.raises(ValueError, match="is of one with other wrappers"):
        env.load_state_dict(state)


def test_own_ids_are_suggested_but_not_listed() -> None:
    with pytest.raises(envs.UnknownEnv, match=f"did you mean '{WALK}'"):
        envs.spec(WALK.replace("v0", "v7"))
    assert WALK in custom.own_ids() and "gym/CartPole-v0" not in custom.own_ids()
    assert WALK not in {row["name"] for row in envs.list_envs()}
