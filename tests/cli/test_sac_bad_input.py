"""SAC: which networks hooks may name, and environments that break: one message, no traceback."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from rlplast.core.errors import ConfigError
from rlplast.core.rng import numpy_stream
from rlplast.run import api
from tests.cli.commands import command
from tests.cli.runs import refused
from tests.runs import final, status
from tests.sac_runs import QUIET, small_sac

FIRE = {"method": "fire", "at": "50%"}


def written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "sac.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_temperature_is_left_out_of_fire_and_a_frozen_one_of_resets(tmp_path: Path):
    frozen = {"agent": {"learn_temperature": False}, "total": "50 env_steps"} | QUIET
    named = [{"method": "full_reset", "at": "50%", "networks": ["temperature"]}]
    with pytest.raises(ConfigError, match="network 'temperature'"):
        api.train(small_sac(hooks=named, **frozen), tmp_path / "run")
    hooks = [FIRE | {"scope": "sac"}, {"method": "full_reset", "at": "60%"}]
    run = api.train(small_sac(hooks=hooks, **frozen), tmp_path / "run")
    assert [row["network"] for row in run.lines("receipts")] == 2 * ["actor", "critic"]
    values = [row["train/temperature"] for row in run.lines() if "train/temperature" in row]
    assert values and values == pytest.approx([0.01] * len(values))


# Environments of the user's own.

MODULE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box

broken = True  # set to False by the test, as if the user had mended it

class Own(gymnasium.Env):
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)
    total, lead = 0, None

    def reset(self, *, seed=None, options=None):
        self.lead = self.np_random.random() if self.lead is None else self.lead
        self.place = self.np_random.random()
        return np.array([self.place, 1.0], np.float32), {}

    def step(self, action):
        self.total += 1
        self.place = 0.9 * self.place + float(action[0]) * 0.1
        due = self.total == 40 + int(20 * self.lead)  # each environment breaks at its own step
        obs = np.array([self.place, 1.0], np.float32)
        return obs, np.nan if broken and due else -abs(self.place), False, False, {}

    def state_dict(self):
        return {"total": self.total, "lead": self.lead, "place": self.place}

    def load_state_dict(self, state):
        self.total, self.lead, self.place = state["total"], state["lead"], state["place"]

gymnasium.register("own/NanReward-v0", entry_point=f"{__name__}:Own", max_episode_steps=25)
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


def test_values_that_are_not_finite_end_the_run_which_resumes_once_mended(own: str, tmp_path: Path):
    run, seed = tmp_path / "run", 3
    config = small_sac(
        env={"id": "gym/own/NanReward-v0", "num_envs": 2},
        **QUIET | {"checkpoint": {"every": "25%", "keep": 9}},
    )
    path = written(tmp_path, config)
    streams = [numpy_stream(seed, "environment", i) for i in range(2)]
    leads = [np.random.default_rng(int(rng.integers(2**31))).random() for rng in streams]
    index = int(np.argmin(leads))
    step = 40 + int(20 * min(leads))  # of one environment; episodes have 25
    assert int(20 * leads[0]) != int(20 * leads[1])

    message = refused(command("--import", own, "train", path, "--out", run), code=1)
    place = f"environment {index} of 'gym/own/NanReward-v0', episode step {(step - 1) % 25 + 1}"
    assert f"{place}: the reward is nan, not a finite number" in message
    assert f"after {2 * (step - 1)} env_steps; the last checkpoint is kept" in message
    assert status(run) == "failed"
    kept = sorted(int(p.name.split("-")[1]) for p in (run / "checkpoints").iterdir())
    assert kept == [at for at in (0, 30, 60, 90) if at <= 2 * (step - 1)]

    again = command("--import", own, "resume", run)
    assert again.code == 1
    assert again.err.splitlines()[-1] == f"rlplast: {message}"  # the same, as nothing has changed
    importlib.import_module(own).broken = False
    assert command("--import", own, "resume", run).code == 0
    api.train(config, tmp_path / "never")
    assert final(run) == final(tmp_path / "never")


def test_values_that_are_not_finite_in_an_evaluation_end_the_run(own: str, tmp_path: Path):
    evaluated = {"every": "100%", "episodes": 3}  # a run too short for its own environments
    config = small_sac(total="35 env_steps", evaluate=evaluated)
    path = written(tmp_path, config | {"env": {"id": "gym/own/NanReward-v0"}})
    outcome = command("--import", own, "train", path, "--out", tmp_path / "run")
    assert "the reward is nan" in refused(outcome, 1)
    assert status(tmp_path / "run") == "failed"
