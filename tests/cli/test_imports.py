"""Modules of the user's own are imported again by what goes on with a run."""

import json
import re
import shlex
import sys
from pathlib import Path

import gymnasium
import pytest

from tests.cli.commands import Outcome, command
from tests.cli.runs import small_config
from tests.report.drawn import undrawn
from tests.runs import final

MODULE = """
import os, signal
import gymnasium, numpy as np

class Stops(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    count = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        if self.count == 70 and os.path.exists(os.environ.get("STOP_IN", "") + "/checkpoints"):
            os.kill(os.getpid(), signal.SIGTERM)
        return np.ones(2, np.float32), 1.0, self.count % 7 == 0, False, {}

gymnasium.register("Stops-v0", "stops_of_mine:Stops")
"""


def afresh(*words: object) -> Outcome:
    """Run a command as a process would that has imported nothing yet."""
    sys.modules.pop("stops_of_mine", None)
    gymnasium.registry.pop("Stops-v0", None)
    return command(*words)


def test_the_command_that_an_interrupted_run_prints_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    Path("stops_of_mine.py").write_text(MODULE)
    env = {"id": "gym/Stops-v0", "num_envs": 1}
    config = small_config(tmp_path, total="150 env_steps", env=env, hooks=[])
    train = ("--import", "stops_of_mine", "train", config, "--out")
    monkeypatch.setenv("STOP_IN", "run")
    stopped = afresh(*train, "run")
    monkeypatch.delenv("STOP_IN")
    assert stopped.code == 130, stopped
    (command_line,) = re.findall(r"`rlplast (resume .*)`", stopped.err)
    resumed = afresh(*shlex.split(command_line))
    assert resumed.code == 0, resumed
    assert json.loads(Path("run/run.json").read_text())["imports"] == ["stops_of_mine"]
    assert afresh("evaluate", "run", "--episodes", 2).code == 0
    assert afresh(*train, "whole").code == 0
    assert final(Path("run")) == final(Path("whole"))

    Path("stops_of_mine.py").rename("elsewhere.py")
    lost = [afresh("evaluate", "run"), afresh("resume", "run", "--total", "200 env_steps")]
    for outcome in lost:
        assert outcome.code == 2
        assert "run was begun with --import stops_of_mine: No module named" in outcome.err
        assert "in the folder where the module lies, or install it" in outcome.err
    monkeypatch.setattr("rlplast.report.drawing.draw", undrawn)
    for words in (("show", "run"), ("compare", "run", "whole"), ("report", "run", "whole")):
        assert afresh(*words).code == 0  # they read what the runs left
