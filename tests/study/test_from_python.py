"""`rlplast.study`, `plan` and `report`: what the commands do, without a word."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rlplast
from rlplast.core.errors import ConfigError, Interrupted
from rlplast.training.config import read_yaml
from tests.cli.commands import command
from tests.cli.studies import ALL, ARMS, TINY, folder_of, results
from tests.study.inline import attempts, inline, run_study, write_study

SCRIPT = """
import rlplast

result = rlplast.study("study.yaml", "out", jobs=2)
print(sorted(set(result.cells.values())))
"""


@pytest.fixture(scope="module")
def by_command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that the command has run."""
    folder = tmp_path_factory.mktemp("by_command")
    assert run_study(write_study(folder, TINY, ARMS), folder / "study")[0].code == 0
    return folder / "study"


def test_study_is_that_of_the_command_and_goes_on(
    by_command: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, seen = write_study(tmp_path, TINY, ARMS), []
    with inline() as backend:
        first = rlplast.study(config, tmp_path / "study", observer=lambda p: seen.append(p.event))
        again = rlplast.study(config, tmp_path / "study")
    assert sorted(backend.started) == sorted(ALL)
    assert results(tmp_path / "study") == results(by_command)
    assert (first.began, again.began) == (True, False)
    assert first.cells == again.cells == {str(path): "done" for path in first.cells}
    assert {tmp_path / "study" / path for path in first.cells} == {
        folder_of(tmp_path / "study", name) for name in ALL
    }
    assert sorted(filter(None, seen)) == sorted(f"done: {name}" for name in ALL)
    assert capsys.readouterr() == ("", "")


def test_a_mapping_is_a_study_too(by_command: Path, tmp_path: Path) -> None:
    keys = read_yaml(write_study(tmp_path, TINY, ARMS))
    with inline():
        rlplast.study(keys, tmp_path / "study")
        again = rlplast.study(tmp_path / "study" / "study.yaml", tmp_path / "study")
    assert results(tmp_path / "study") == results(by_command)
    assert not again.began
    with pytest.raises(ConfigError, match="say out=FOLDER"):
        rlplast.study(keys)


def test_cells_that_fail_are_told_and_raise_nothing(tmp_path: Path) -> None:
    def fault(name: str, attempt: int) -> int | None:
        return 1 if name == "seed-3/prefix to 75 env_steps" else None

    config = write_study(tmp_path, TINY, ARMS)
    with inline(fault):
        found = rlplast.study(config, tmp_path / "study")
    states = {name: found.cells[str(folder_of(found.folder, name).relative_to(found.folder))]
              for name in ALL}  # fmt: skip
    assert list(states.values()) == ["done", "done", "failed", "skipped", "skipped"]
    assert [failure.cell.name for failure in found.failures] == ALL[2:]


def test_an_interruption_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    def fault(name: str, attempt: int) -> int | None:
        raise KeyboardInterrupt

    config = write_study(tmp_path, TINY, ARMS)
    with inline(fault), pytest.raises(Interrupted, match="the same command goes on with"):
        rlplast.study(config, tmp_path / "study")
    assert [row["end"] for row in attempts(tmp_path / "study", ALL[0])] == ["stopped"]


def test_plan_is_what_the_command_prints(tmp_path: Path) -> None:
    config = write_study(tmp_path, TINY, ARMS)
    found, output = rlplast.plan(config, tmp_path / "study"), command("study", config, "--plan").out
    assert f"{len(found.cells)} cells" in output
    steps = sum(own["env_steps"] for own in found.takes.values())
    assert f"estimate: {steps:,.0f} env_steps" in output
    assert found.problem is None and "timed here" in found.notes[0]
    assert not (tmp_path / "study").exists()


def test_plan_of_an_arm_that_cannot_be_built_has_its_cells_all_the_same(tmp_path: Path) -> None:
    arms = {"none": {}, "a": {"hooks": [{"method": "fier", "at": "50%"}]}}
    found = rlplast.plan(write_study(tmp_path, TINY, arms))
    assert len(found.cells) == 3
    assert "hooks[0].method = 'fier': did you mean 'fire'?" in str(found.problem)


@pytest.mark.parametrize(
    ("jobs", "message"),
    [(0, "jobs 0: allowed is at least 1"), ("2", "jobs '2': allowed is a whole number from 1 on")],
)
def test_number_of_jobs_is_checked(jobs: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        rlplast.study(write_study(tmp_path, TINY, ARMS), tmp_path / "study", jobs=jobs)
    assert not (tmp_path / "study").exists()


def test_report_is_that_of_the_command(by_command: Path, tmp_path: Path) -> None:
    page = rlplast.report(by_command, out=tmp_path / "report").page
    assert page == tmp_path / "report" / "report.html"
    assert command("report", by_command).code == 0
    for name in ("report.html", "summary.csv"):
        theirs = (by_command / "report" / name).read_bytes()
        assert (tmp_path / "report" / name).read_bytes() == theirs


@pytest.mark.slow
def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Its cells are processes of their own, which do not run the script."""
    write_study(tmp_path, TINY, {"none": {}, "fire": ARMS["fire"]})
    (tmp_path / "script.py").write_text(SCRIPT)
    words, ours = [sys.executable, "script.py"], str(Path(rlplast.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": ours}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "['done']\n"), done.stderr
    infos = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("run.json")]
    assert [info["status"] for info in infos] == ["done"] * 3
