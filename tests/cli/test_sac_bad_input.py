"""What a user may get wrong with SAC, and environments that break: one message, no traceback."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from rlplast.core.errors import ConfigError
from rlplast.core.rng import numpy_stream
from rlplast.run import api
from rlplast.run.build import build
from tests.cli.commands import command
from tests.cli.runs import jsonl, refused
from tests.marks import slow
from tests.runs import final, status
from tests.sac_runs import QUIET, small_sac

FIRE = {"method": "fire", "at": "50%"}


def written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "sac.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def refusal(folder: Path, config: dict[str, Any], *words: str) -> str:
    """Train a config that is refused; nothing is left behind."""
    path = written(folder, config)
    before = sorted(p.name for p in folder.iterdir())
    message = refused(command(*words, "train", path, "--out", folder / "run"))
    assert sorted(p.name for p in folder.iterdir()) == before
    return message


RULES: list[tuple[str, Any, str]] = [
    ("agent.critic_widht", 8, "'critic_width'"),
    ("agent.double", True, "for kind: dqn"),
    ("agent.hidden", [8], "at least one layer, with"),
    ("agent.critic_subset", 3, "agent.critics = 2"),
    ("agent.log_std_min", 2.0, "less than agent.log_std_max"),
    ("agent.log_std_min", 5.0, "less than agent.log_std_max"),
    ("agent.initial_steps", 120, "less than the total"),
    ("agent.buffer_size", 2, "at least"),
    ("hooks", [FIRE | {"networks": ["critics"]}], "'critic'"),
    ("hooks", [FIRE | {"networks": ["q"]}], "'q'"),
    ("hooks", [FIRE | {"networks": ["target"]}], "'target'"),
    ("hooks", [FIRE | {"networks": ["temperature"]}], "network 'temperature'"),
    ("hooks", [FIRE | {"networks": ["actor", "temperature"]}], "network 'temperature'"),
    ("hooks", [FIRE | {"scope": "sacc"}], "'sac'"),
    ("env", {"id": "gym/CartPole-v1"}, "'gym/CartPole-v1' has 2 discrete actions"),
    ("env", {"id": "gym/Acrobot-v1"}, "use kind: dqn"),
    ("env", {"id": "gym/Drift-v0"}, "--import MODULE"),
    ("env", {"id": "gym/Hoper-v5"}, "'gym/Hopper-v5'"),
    ("env", {"id": "dmc/humanoid-wlak"}, "'dmc/humanoid-walk'"),
]


def test_what_does_not_fit_together_is_named() -> None:
    for key, value, word in RULES:
        try:
            build(api.read_config(small_sac(), {key: value}))
            message = "accepted"
        except ConfigError as error:
            message = str(error)
        assert word in message, (key, value, message)


def test_fire_without_networks_leaves_the_temperature_out(tmp_path: Path):
    hooks = [{"method": "fire", "at": "50%", "scope": "sac"}]
    config = written(tmp_path, small_sac(total="50 env_steps", hooks=hooks, **QUIET))
    assert command("train", config, "--out", tmp_path / "run").code == 0
    rows = jsonl(tmp_path / "run" / "receipts.jsonl")
    assert [row["network"] for row in rows] == ["actor", "critic"]


def test_reset_of_a_frozen_temperature_is_refused_by_name_or_leaves_it_out(tmp_path: Path):
    frozen = {"agent": {"learn_temperature": False}, "total": "50 env_steps"}
    named = [{"method": "full_reset", "at": "50%", "networks": ["temperature"]}]
    assert "network 'temperature'" in refusal(tmp_path, small_sac(hooks=named, **frozen))
    config = small_sac(hooks=[{"method": "full_reset", "at": "50%"}], **frozen)
    outcome = command("train", written(tmp_path, config), "--out", tmp_path / "run")
    assert outcome.code == 0
    rows = jsonl(tmp_path / "run" / "receipts.jsonl")
    assert [row["network"] for row in rows] == ["actor", "critic"]
    values = [row for row in jsonl(tmp_path / "run" / "metrics.jsonl") if "train/loss" in row]
    assert [row["train/temperature"] for row in values] == pytest.approx([0.01] * len(values))


# Environments of the user's own.

MODULE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Text

OBS = Box(-np.inf, np.inf, (2,), np.float32)
UNIT = Box(-1, 1, (1,), np.float32)
broken = True  # set to False by the test, as if the user had mended it

class Own(gymnasium.Env):
    def __init__(self, observation_space=OBS, action_space=UNIT, breaks=None, value=0.0):
        self.observation_space, self.action_space = observation_space, action_space
        self.breaks, self.value, self.total, self.lead = breaks, value, 0, None

    def obs(self):
        bad = broken and self.breaks == "last" and self.due()
        return np.array([self.place, self.value if bad else 1.0], np.float32)

    def due(self):  # each environment breaks at its own step
        return self.total == 40 + int(20 * self.lead)

    def reset(self, *, seed=None, options=None):
        self.lead = self.np_random.random() if self.lead is None else self.lead
        self.place = self.np_random.random()
        first = broken and self.breaks == "first"
        return np.array([np.nan, 1.0], np.float32) if first else self.obs(), {}

    def step(self, action):
        self.total += 1
        self.place = 0.9 * self.place + float(action[0]) * 0.1
        bad = broken and self.breaks == "reward" and self.due()
        ends = self.breaks == "last" and self.due()
        return self.obs(), self.value if bad else -abs(self.place), ends, False, {}

    def state_dict(self):
        return {"total": self.total, "lead": self.lead, "place": self.place}

    def load_state_dict(self, state):
        self.total, self.lead, self.place = state["total"], state["lead"], state["place"]

def register(name, **options):
    gymnasium.register(
        f"own/{name}-v0", entry_point=f"{__name__}:Own", kwargs=options, max_episode_steps=25
    )

register("Unbounded", action_space=Box(-np.inf, 1, (1,), np.float32))
register("Half", action_space=Box(np.array([-1, -1], "f"), np.array([1, np.inf], "f")))
register("Pair", observation_space=Dict({"place": OBS, "goal": Text(3)}))
register("NanReward", breaks="reward", value=float("nan"))
register("NanLast", breaks="last", value=float("nan"))
register("NanFirst", breaks="first")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that registers environments as it is imported."""
    folder = tmp_path / "modules"
    folder.mkdir()
    name = f"own_envs_{abs(hash(tmp_path)):x}"
    (folder / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    before = set(gymnasium.registry)
    yield name
    for env_id in set(gymnasium.registry) - before:
        del gymnasium.registry[env_id]


def mended(name: str) -> ModuleType:
    module = importlib.import_module(name)
    module.broken = False
    return module


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ("Unbounded", "entry 0 of the actions of env 'gym/own/Unbounded-v0' has the bounds -inf"),
        ("Half", "entry 1 of the actions of env 'gym/own/Half-v0' has the bounds -1.0 and inf"),
        ("Pair", "observations['goal'] of env 'gym/own/Pair-v0' are Text"),
        ("NanRewad", "'gym/own/NanReward"),
    ],
)
def test_spaces_an_agent_cannot_work_with_are_refused(
    env: str, says: str, own: str, tmp_path: Path
):
    config = small_sac() | {"env": {"id": f"gym/own/{env}-v0"}}
    assert says in refusal(tmp_path, config, "--import", own)


@pytest.mark.parametrize(
    ("env", "found"),
    [
        ("NanReward", "the reward is nan"),
        slow("NanLast", "entry 1 of the observation is nan"),
    ],
)
def test_values_that_are_not_finite_end_the_run_which_resumes_once_mended(
    env: str, found: str, own: str, tmp_path: Path
):
    run, seed = tmp_path / "run", 3
    config = small_sac(
        env={"id": f"gym/own/{env}-v0", "num_envs": 2},
        **QUIET | {"checkpoint": {"every": "25%", "keep": 9}},
    )
    path = written(tmp_path, config)
    streams = [numpy_stream(seed, "environment", i) for i in range(2)]
    leads = [np.random.default_rng(int(rng.integers(2**31))).random() for rng in streams]
    index = int(np.argmin(leads))
    step = 40 + int(20 * min(leads))  # of one environment; episodes have 25
    assert int(20 * leads[0]) != int(20 * leads[1])

    message = refused(command("--import", own, "train", path, "--out", run), code=1)
    place = f"environment {index} of 'gym/own/{env}-v0', episode step {(step - 1) % 25 + 1}"
    assert f"{place}: {found}, not a finite number" in message
    assert f"after {2 * (step - 1)} env_steps; the last checkpoint is kept" in message
    assert status(run) == "failed"
    kept = sorted(int(p.name.split("-")[1]) for p in (run / "checkpoints").iterdir())
    assert kept == [at for at in (0, 30, 60, 90) if at <= 2 * (step - 1)]

    again = command("--import", own, "resume", run)
    assert again.code == 1
    assert again.err.splitlines()[-1] == f"rlplast: {message}"  # the same, as nothing has changed
    mended(own)
    assert command("--import", own, "resume", run).code == 0
    api.train(config, tmp_path / "never")
    assert final(run) == final(tmp_path / "never")


def test_first_observation_that_is_not_finite_ends_the_run(own: str, tmp_path: Path):
    config = small_sac() | {"env": {"id": "gym/own/NanFirst-v0"}}
    path = written(tmp_path, config)
    outcome = command("--import", own, "train", path, "--out", tmp_path / "run")
    assert outcome.code in (1, 2)
    assert "entry 0 of the first observation is nan" in refused(outcome, outcome.code)


def test_values_that_are_not_finite_in_an_evaluation_end_the_run(own: str, tmp_path: Path):
    config = small_sac(
        env={"id": "gym/own/NanReward-v0", "options": {"max_episode_steps": 70}},
        total="40 env_steps",
        evaluate={"every": "100%", "episodes": 1},
    )
    outcome = command("--import", own, "train", written(tmp_path, config), "--out", tmp_path / "r")
    assert "the reward is nan, not a finite number" in refused(outcome, code=1)
    assert status(tmp_path / "r") == "failed"
