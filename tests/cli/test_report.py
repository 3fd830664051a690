"""`rlplast report`: what it writes and prints, and what it refuses."""

from pathlib import Path

import pytest

from tests.cli.commands import command
from tests.cli.runs import refused
from tests.report.conftest import quick  # noqa: F401
from tests.report.runs import write_run, write_study

ARMS = ("none", "[red]fire", "full_reset")  # a name is no markup


pytestmark = pytest.mark.usefixtures("quick")


def test_report_lies_in_the_first_folder_and_its_table_has_a_line_per_arm(tmp_path: Path):
    study = write_study(tmp_path, arms=ARMS, seeds=range(5))
    done = command("report", study)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == f"report: {study / 'report' / 'report.html'}"
    names = {path.name for path in (study / "report").iterdir()}
    assert {"report.html", "summary.csv", "curve-asterix.svg", "curve-asterix.png"} <= names
    lines = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in done.out.splitlines()
        if line.startswith("│")
    ]
    assert [line[:3] for line in lines] == [["asterix", arm, "5"] for arm in ARMS]
    assert all("[" in line[3] for line in lines)
    # all 25 pairs are won: Newcombe's interval of 5 and 5 seeds
    assert [line[4] for line in lines] == ["–", *2 * ("1.00 [0.643, 1.00]",)]
    message = " ".join(done.out.split())
    assert "full_reset is better than none by " in message
    assert "(p < 0.001, Holm, 5 seeds, 2 of 2 arms differ). [red]fire is better" in message


def test_out_is_made_and_several_folders_are_put_together(tmp_path: Path):
    rows = [{"updates": 5, "env_steps": x, "eval/return_mean": 1.0} for x in (500, 6000)]
    runs = [write_run(tmp_path / f"run{s}", rows, config={"seed": s}) for s in (1, 2)]
    out = tmp_path / "new" / "folder"
    done = command("report", *runs, "--out", out)
    assert done.code == 0, done
    assert "<dt>Seeds</dt><dd>2: 1, 2</dd>" in (out / "report.html").read_text()
    assert not (runs[0] / "report").exists()


def test_nothing_to_report_is_refused(tmp_path: Path):
    assert str(tmp_path) in refused(command("report", tmp_path))
    assert "nowhere" in refused(command("report", tmp_path / "nowhere"))
    statuses = {("asterix", "none", 1): "failed"}
    failed = {("asterix", "fire", 1): "failed"}
    partly = write_study(tmp_path, seeds=(1, 2), name="partly", statuses=failed)
    assert "1 cell not done" in command("report", partly).out
    unfinished = write_study(tmp_path, arms=("none",), seeds=(1,), statuses=statuses)
    assert "asterix/seed-1/none" in refused(command("report", unfinished))
    assert not (unfinished / "report").exists()


def test_out_that_cannot_be_made_is_refused(tmp_path: Path):
    study = write_study(tmp_path, seeds=(1,))
    file = tmp_path / "file"
    file.write_text("mine")
    assert str(file) in refused(command("report", study, "--out", file))
    output = refused(command("report", study, "--out", file / "below"), code=1)
    assert "could not be written" in output
    assert file.read_text() == "mine"
    assert command("report").code == 2
