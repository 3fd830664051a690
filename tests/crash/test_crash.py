"""A little of what is run by hand for as long as one likes: kills, and attacks.

On a busy machine fewer kills may fall into a run than were asked for. That is no failure here.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash import kill_resume, kill_study
from tests.study.inline import write_study

pytestmark = pytest.mark.slow


def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    words = ["--config", "dqn/minatar_breakout", "--kills", "2", "--out", str(tmp_path / "runs")]
    assert kill_resume.main(words) != 1


def test_a_study_that_is_killed_goes_on(tmp_path: Path) -> None:
    resets = {at: {"hooks": [{"method": "full_reset", "at": at}]} for at in ("25%", "50%")}
    study = write_study(tmp_path, "dqn/minatar_breakout", {"none": {"hooks": []}} | resets)
    words = [str(study), "--kills", "1", "--out", str(tmp_path / "studies")]
    assert kill_study.main([*words, "--total", "400 env_steps"]) != 1


def test_what_is_hostile_is_refused_in_a_line_that_names_it() -> None:
    words = ["--configs", "100", "--corruptions", "24"]
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-m", "tests.crash.attack", *words], check=True, cwd=root)
