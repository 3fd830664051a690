"""Runs on environments that nobody made for this library: killed and resumed."""

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlplast import envs
from rlplast.agents.sequence import EnvConfig
from rlplast.agents.tasks import Tasks
from rlplast.core.clock import Time
from rlplast.core.errors import ConfigError, RlplastError
from rlplast.run import api
from rlplast.run.info import resume_words
from rlplast.run.native import NativeEnv
from tests.envs import hiding
from tests.marks import slow_but
from tests.runs import TINY, Killed, at_step, final, kill

DQN: dict[str, Any] = TINY | {
    "agent": TINY["agent"] | {"network": "mlp", "hidden": [16], "buffer_size": 300, "n_step": 3},
    "hooks": [{"method": "full_reset", "at": "50%"}],
    "evaluate": {"every": "50%", "episodes": 1},
    "metrics": {"every": None},
    "checkpoint": {"every": "10%", "keep": 3},
}
SAC: dict[str, Any] = {
    "kind": "sac",
    "agent": {"actor_width": 8, "critic_width": 8, "batch_size": 8, "initial_steps": 20}
    | {"network": "mlp", "buffer_size": 300},
}


def config(env_id: str, kind: str = "dqn", **env: Any) -> dict[str, Any]:
    own = DQN if kind == "dqn" else DQN | SAC
    return own | {"env": {"id": env_id, "num_envs": 2, **env}}


KEYS = {"keys": ["image"], "kwargs": {}}
ENVS = {
    "Saved": (config(f"gym/{hiding.PREFIX}Saved-v0"), "exact"),
    "Doubled": (config(f"gym/{hiding.PREFIX}with_doubled-v0", workers=1), "exact"),
    "Frames": (config(f"gym/{hiding.PREFIX}with_frames-v0"), "replayed"),
    "Taxi": (config("gym/Taxi-v4"), "replayed"),
    "MiniGrid": (config("gym/minigrid:MiniGrid-DoorKey-5x5-v0", options=KEYS), "replayed"),
    "LunarLanderContinuous": (config("gym/LunarLanderContinuous-v3", "sac"), "replayed"),
}


@pytest.mark.parametrize("name", slow_but(("Saved", "MiniGrid", "LunarLanderContinuous"), ENVS))
def test_killed_and_resumed_equals(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("Box2D")
    keys, level = ENVS[name]
    messages: list[str] = []
    whole = api.train(keys, tmp_path / "whole", report=messages.append)
    assert whole.info["environment"]["resume"] == level
    said = [text.split(":")[1].strip() for text in messages]
    assert said == ([level] if level != "exact" else [])
    with pytest.raises(Killed):
        api.train(keys, tmp_path / "run", observer=at_step(50, kill))
    monkeypatch.setattr(envs, "find_resume", None)  # it is not judged again
    info = api.resume(tmp_path / "run").info
    assert final(tmp_path / "run") == final(tmp_path / "whole")
    assert info["environment"] == whole.info["environment"]
    assert "new_episodes" not in info


class Fickle(gymnasium.Env):
    """Numbers its steps in episodes that are numbered at random; another one by the version."""

    observation_space = spaces.Box(0, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)
    begins_at: ClassVar[int] = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode = int(self.np_random.integers(2**23))
        self.number = self.begins_at
        return np.array([self.number, self.episode], np.float64), {}

    def step(self, action: int) -> Any:
        self.number += 1
        ends = self.number == self.begins_at + 11
        obs = np.array([self.number, self.episode], np.float64)
        return obs, 1.0, ends and self.episode % 2 == 0, ends, {}


class FickleSaved(Fickle):
    what: ClassVar[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"episode": self.episode, "number": self.number, "what": self.what}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.episode, self.number = state["episode"], state["number"]


class Sides(gymnasium.Env):
    """Seen as 99 or 101; an episode of 5 steps ends with its success: whether the side is 1."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)
    seen: ClassVar[int] = 99

    def obs(self) -> np.ndarray:
        return np.array([self.seen + 2 * self.side, 1], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.side, self.steps = int(self.np_random.integers(2)), 0
        return self.obs(), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        return self.obs(), float(self.side), self.steps == 5, False, {"is_success": self.side}


class OtherSides(Sides):
    seen = 999


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium, "registry", dict(gymnasium.registry))
    monkeypatch.setattr("gymnasium.envs.registration.registry", gymnasium.registry)
    hiding.register()
    normal = gymnasium.wrappers.NormalizeObservation.wrapper_spec(epsilon=1e-8)
    for kind in (Fickle, FickleSaved, Sides, OtherSides, Kettle):
        gymnasium.register(f"{kind.__name__}-v0", kind)
    for kind in (Sides, OtherSides):
        gymnasium.register(f"Normal{kind.__name__}-v0", kind, additional_wrappers=(normal,))


def test_evaluations_see_what_wrappers_learnt_in_training(tmp_path: Path) -> None:
    run = api.train(config("gym/NormalSides-v0"), tmp_path / "run")
    for name, mean in (
        ("train/success_rate", "train/return"),
        ("eval/success_rate", "eval/return_mean"),
    ):
        logged = [(line[name], line[mean] / 5) for line in run.lines() if mean in line]
        assert logged and all(rate == pytest.approx(of_return) for rate, of_return in logged)
    agent = run.agent()
    learned = agent.experience.env.learned()
    assert learned[0][0]["count"] > 20  # of the checkpoint, whatever level its environments are of
    seen: list[np.ndarray] = []
    act = agent._act_in_evaluation
    agent._act_in_evaluation = lambda obs, rng: seen.append(obs.copy()) or act(obs, rng)
    agent.play(0, 20)
    for i, (kept,) in enumerate(learned):
        allowed = [(x - kept["mean"]) / np.sqrt(kept["var"] + 1e-8) for x in ([99, 1], [101, 1])]
        found = np.unique(np.stack(seen)[:, i], axis=0)
        np.testing.assert_allclose(found, allowed, rtol=1e-5)


def test_tasks_of_a_sequence_keep_what_their_wrappers_learnt(tmp_path: Path) -> None:
    ids = ["gym/NormalSides-v0", "gym/NormalOtherSides-v0", "gym/Sides-v0"]
    keys = config("") | {"evaluate": {"every": "20%", "episodes": 2, "tasks": "seen"}, "hooks": []}
    keys["env"] = {"sequence": ids, "steps_per_task": 60, "cycles": 2, "num_envs": 2}
    keys.pop("total")
    run = api.train(keys, tmp_path / "run")
    assert any(f"eval/{ids[2]}/return_mean" in line for line in run.lines())
    learned = run.agent().experience.learned()
    for task, offset in ((0, 100), (1, 1000)):  # of both cycles, from the checkpoint
        for (kept,) in learned[task]:
            assert kept["count"] > 60 / 2 * 1.5
            assert abs(kept["mean"][0] - offset) < 200
    assert not any(learned.get(2, []))


class Kettle(gymnasium.Env):
    """Observations are a Dict, actions a matrix with bounds of its own."""

    observation_space = spaces.Dict(
        {"heat": spaces.Box(0, 100, (2,), np.int16), "mode": spaces.Discrete(3, start=1)}
    )
    action_space = spaces.Box(0, 10, (1, 2), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(99)))
        return self.observation_space.sample(), {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 0.0, bool(self.np_random.random() < 0.1), False, {}


def test_a_run_acts_in_the_form_of_its_environment(tmp_path: Path) -> None:
    run, env = api.train(config("gym/Kettle-v0", "sac"), tmp_path / "run"), Kettle()
    observations = [env.reset(seed=seed)[0] for seed in range(4)]
    one_hot = np.eye(3, dtype=np.float32)
    seen = np.stack([np.append(obs["heat"], one_hot[obs["mode"] - 1]) for obs in observations])
    expected = 5 + 5 * run.agent().act(seen.astype(np.float32)).reshape(4, 1, 2)
    for obs, action in zip(observations, expected, strict=True):
        found = run.act(obs)
        assert env.action_space.contains(found)
        np.testing.assert_allclose(found, action, atol=1e-5)
    batch = {name: np.stack([obs[name] for obs in observations]) for name in observations[0]}
    for several in (observations, batch):
        np.testing.assert_allclose(run.act(several), expected, atol=1e-5)
    for wrong in (seen[0], batch | {"heat": np.zeros((4, 3))}, {"heat": [1, 2]}, None, 3):
        with pytest.raises(ConfigError, match="'gym/Kettle-v0'"):
            run.act(wrong)
    run.close()


def test_an_observation_is_not_rounded_to_whole_numbers() -> None:
    env = NativeEnv("minatar/breakout", {})
    board = np.ones(env._env.spec.obs_shape)
    assert env.act(lambda obs: obs[:, 0, 0, 0], board) == 1
    for wrong in (board / 2, -board, 300 * board):
        for obs in (wrong, wrong[None]):
            with pytest.raises(ConfigError, match="sees as uint8"):
                env.act(lambda obs: obs[:, 0, 0, 0], obs)
    env.close()


def fickle_run(name: str = "Fickle", n_step: int = 2, **env: Any) -> dict[str, Any]:
    keys = config(f"gym/{name}-v0", **env | {"num_envs": 3})
    keys |= {"hooks": [], "evaluate": {"every": None}, "total": "240 env_steps"}
    return keys | {"agent": DQN["agent"] | {"n_step": n_step}}


def check_replay(loop: Any, n_step: int = 2) -> None:
    """Check that transitions are those that an environment made, each once, none lost."""
    replay = loop.trainable.experience.replay
    (batch,) = replay.batches(None, 10_000, np.random.default_rng(0))
    (number, episode), (number_next, episode_next) = batch.obs.numpy().T, batch.obs_next.numpy().T
    pairs = set(zip(number, episode, strict=True))
    assert len(pairs) == len(number) >= 240 - (n_step - 1) * 3
    assert (episode == episode_next)[batch.discount.numpy() > 0].all()
    same = episode == episode_next
    np.testing.assert_array_equal((number_next - number)[same], batch.reward.numpy()[same].round())


def test_a_restart_loses_doubles_and_joins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envs, "find_resume", lambda *_, **__: envs.Level("restarted", "of a test"))
    with pytest.raises(ConfigError, match=r"env\.resume = 'exact'"):
        api.train(fickle_run(resume="exact"), tmp_path / "exact")
    keys = fickle_run(n_step=3)
    with pytest.raises(Killed):
        api.train(keys, tmp_path / "run", observer=at_step(60, kill))
    loops, messages = list[Any](), list[str]()
    api.resume(tmp_path / "run", observer=loops.append, report=messages.append)
    assert "restarted" in messages[0]
    check_replay(loops[0], n_step=3)


@pytest.mark.parametrize("level", envs.LEVELS)
def test_a_branch_goes_on_as_its_prefix_does(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = envs.Level(level, "" if level == "exact" else "of a test")
    monkeypatch.setattr(envs, "find_resume", lambda *_, **__: found)
    keys = fickle_run("FickleSaved")
    whole = api.train(keys, tmp_path / "whole")
    until = (Time.parse("120 env_steps"),)
    prefix = api.train(keys, tmp_path / "prefix", until=until)
    monkeypatch.setattr(envs, "find_resume", None)
    arm = tmp_path / "arm"
    api.branch(prefix.path, arm, api.read_config(keys), until)
    loops = list[Any]()
    info = api.resume(arm, observer=loops.append).info
    assert info["environment"] == prefix.info["environment"]
    assert info["environment"]["resume"] == level
    assert "new_episodes" not in info
    check_replay(loops[0])
    if level != "restarted":
        assert final(arm) == final(whole.path)


def test_tasks_of_a_sequence_have_levels_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"gym/CartPole-v1": envs.Level("exact"), "gym/Fickle-v0": envs.Level("restarted", "x")}
    tried = []

    def find(env_id: str, *_: Any, **__: Any) -> envs.Level:
        tried.append(env_id)
        return known[env_id]

    monkeypatch.setattr(envs, "find_resume", find)
    ids: list[Any] = ["gym/CartPole-v1", "gym/Fickle-v0", "gym/CartPole-v1"]
    tasks = Tasks(EnvConfig(sequence=ids, steps_per_task="100"), 0)
    found = tasks.decide({})
    of_tasks = {"gym/CartPole-v1": {"resume": "exact", "reason": ""}}
    joined = {"id": "gym/CartPole-v1+gym/Fickle-v0", "resume": "restarted", "reason": "x"}
    assert found == joined | {"tasks": of_tasks}
    again = Tasks(EnvConfig(sequence=ids, steps_per_task="100"), 0)
    assert again.decide(json.loads(json.dumps(found))) == found
    assert again.levels == tasks.levels and tried == ids[:2]


def test_what_is_played_again_must_lead_to_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Killed):
        api.train(fickle_run(), tmp_path / "run", observer=at_step(130, kill))
    monkeypatch.setattr(Fickle, "begins_at", 100)
    loops, messages = list[Any](), list[str]()
    info = api.resume(tmp_path / "run", observer=loops.append, report=messages.append).info
    check_replay(loops[0])
    (begun,) = info["new_episodes"]
    assert "went otherwise" in begun["reason"]
    assert f"new episodes begin: {begun['reason']}" in messages
    assert resume_words(info).endswith(f"({begun['reason']})")


@pytest.mark.parametrize("resume", ["auto", "exact"])
def test_what_cannot_be_saved_or_put_back_begins_new_episodes_or_is_refused(
    resume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = fickle_run("FickleSaved", resume=resume)
    with pytest.raises(Killed):
        api.train(keys, tmp_path / "back", observer=at_step(130, kill))
    # While a run goes on, its state becomes one that no file holds.
    changes = at_step(60, lambda: monkeypatch.setattr(FickleSaved, "what", (1, 2)))
    kills = at_step(130, kill)
    with pytest.raises(Killed if resume == "auto" else RlplastError):
        api.train(keys, tmp_path / "saved", observer=lambda loop: (changes(loop), kills(loop)))
    monkeypatch.setattr(FickleSaved, "what", [])
    monkeypatch.setattr(FickleSaved, "load_state_dict", lambda *_: 1 / 0)
    if resume == "exact":
        with pytest.raises(ConfigError, match=r"env\.resume = 'exact'"):
            api.resume(tmp_path / "back")
        return
    for name, reason in (("saved", "(1, 2) of type tuple"), ("back", "ZeroDivisionError")):
        loops = list[Any]()
        info = api.resume(tmp_path / name, observer=loops.append).info
        check_replay(loops[0])
        assert reason in info["new_episodes"][0]["reason"]
