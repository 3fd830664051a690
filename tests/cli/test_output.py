"""What was read is printed so that no terminal obeys it: hostile names through every command."""

import io
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.cells import cell_len

from rlplast.cli import output
from rlplast.cli.live import Rows
from rlplast.cli.main import COMMANDS
from rlplast.core.errors import RlplastError
from tests.cli.commands import Outcome, command, printed, save, trained_pair
from tests.cli.runs import SMALL
from tests.cli.studies import TINY
from tests.cli.terminals import rows, terminal
from tests.report.runs import metric_rows, receipt_row, write_run, write_study

# a title for the window, a C1 code, DEL, letters from right to left, rich's markup and emoji
EVIL = "\x1b]0;x\x07\x9b31m\x7f\u202e\r[red]n[b]:smile:"
SHOWN = r"\x1b]0;x\x07\x9b31m\x7f\u202e\r[red]n[b]:smile:"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # rich's own


def harmless(*words: object) -> Outcome:
    """Run a command, and check every letter that it prints."""
    done = command(*words)
    for text in (done.out, done.err):
        assert not OBEYED.findall(COLOURS.sub("", text)), text
    return done


def flat(outcome: Outcome) -> str:
    """What was printed, without ends of lines and frames of tables."""
    return re.sub(r"[\s│┃]", "", COLOURS.sub("", outcome.out + outcome.err))


SCREENS: list[dict[str, str]] = [{"COLUMNS": "200"}, {"COLUMNS": "200", "FORCE_COLOR": "1"}]


@pytest.fixture(params=SCREENS, ids=["piped", "terminal"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in request.param.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose every file says something hostile, in a folder called so too."""
    rows: list[dict[str, Any]] = metric_rows(float, [1000, 2000])
    rows += [{"updates": 1000, "env_steps": 2000, f"eval/{EVIL}": 1.0, f"train/{EVIL}": 2.0}]
    receipts = [receipt_row(EVIL, 1000, EVIL), receipt_row(EVIL, 2000, norm=None)]
    receipts[1]["units"] = {EVIL: 3}
    info = dict.fromkeys(("host", "started", "git_revision"), EVIL)
    about = {"command": ["rlplast", EVIL], "versions": {EVIL: EVIL}}
    config = {"env": {"id": f"gym/{EVIL}", "num_envs": 1}, "agent": {EVIL: EVIL}}
    return write_run(tmp_path / f"run {EVIL}", rows, receipts, config, info | about)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    arms, statuses = ("none", EVIL), {("asterix", EVIL, 2): "failed"}
    folder = write_study(tmp_path, arms, (1, 2), name=f"study {EVIL}", statuses=statuses)
    plan = json.loads((folder / "study.json").read_text())
    plan |= {"name": EVIL, "command": [EVIL], "versions": {EVIL: EVIL}}
    plan["cells"] = [cell | {"name": f"{cell['arm']}"} for cell in plan["cells"]]
    (folder / "study.json").write_text(json.dumps(plan))
    return folder


@pytest.mark.usefixtures("screen")
def test_runs_are_shown_and_compared(run: Path, tmp_path: Path):
    assert flat(harmless("show", run)).count(SHOWN) >= 7
    found = json.loads(harmless("show", run, "--json").out)
    assert found["host"] == EVIL and found["command"] == ["rlplast", EVIL]
    assert "\\u009b31m\\u007f\\u202e" in command("show", run, "--json").out
    other = write_run(tmp_path / "other", metric_rows(float, [1000]), [receipt_row("fire", 1000)])
    assert flat(harmless("compare", run, other)).count(SHOWN) >= 4
    harmless("compare", run, other, "--json")
    stored = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(stored | {"status": EVIL}))
    assert SHOWN in flat(harmless("show", run))


def test_a_study_is_shown_and_reported(
    study: Path, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def fail(*_: object) -> None:
        raise RlplastError(EVIL)

    monkeypatch.setattr("rlplast.report.drawing.draw", fail)
    monkeypatch.setattr("rlplast.report.contents._vega", lambda: "")
    for variables in SCREENS:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert flat(harmless("show", study)).count(SHOWN) >= 3
    harmless("show", study, "--json")
    done = harmless("report", study, run, "--out", tmp_path / EVIL)
    assert done.code == 0
    assert f"rlplast: pictures are not drawn: {SHOWN}" in done.err
    assert flat(done).count(SHOWN) >= 4


@pytest.mark.usefixtures("screen")
def test_a_study_is_planned_and_run(tmp_path: Path):
    config = tmp_path / f"{EVIL}.yaml"
    arms: Any = {"none": {}, EVIL: {"hooks": [{"method": "fire", "at": "50%"}]}}
    config.write_text(yaml.safe_dump({"base": TINY, "seeds": [1], "arms": arms}))
    done = harmless("study", config, "--plan")
    assert done.code == 0 and SHOWN in flat(done)
    config.write_text(yaml.safe_dump({"base": TINY, "arms": {EVIL: {EVIL: 1}}}))
    done = harmless("study", config, "--out", tmp_path / "out")
    assert done.code == 2 and "n[b]" in done.err


def test_a_file_of_weights_is_edited_and_measured(tmp_path: Path):
    weights, initial = trained_pair(tmp_path)
    named = tmp_path / f"{EVIL}.pt"
    save({EVIL: torch.load(weights)["4.weight"]}, named)
    assert SHOWN in flat(harmless("measure", named))
    harmless("measure", named, "--json")
    done = harmless("apply", "shrink_perturb", named, "--init", initial, "--out", tmp_path / "o.pt")
    assert done.code == 2 and "n[b]" in done.err
    done = harmless("apply", "fire", named, "--out", tmp_path / f"o {EVIL}.pt")
    assert done.code == 0 and flat(done).count(SHOWN) == 2


ABSENT = {  # arguments of commands, of which others take one path
    "compare": [EVIL, EVIL],
    "apply": ["fire", EVIL, "--out", f"{EVIL}.pt"],
    "data": ["cifar10", "--root", EVIL],
    "tokens": [EVIL, "--out", "x"],
    "frame": [EVIL, "--out", "x.csv"],
    "schema": ["--out", f"{EVIL}/schema.json"],
}


def test_what_is_not_there_is_named_in_an_error(tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    for name in COMMANDS:
        words = ABSENT.get(name, [EVIL])
        done = harmless(name, *words)
        assert done.code == 2 and "n[b]:smile:" in done.err, name
        assert harmless(name, *words, f"--{EVIL}", EVIL).code == 2, name
    for words in ([EVIL], ["--import", EVIL, "list"], ["show", "a", EVIL]):
        done = harmless(*words)
        assert done.code == 2 and "[red]n[b]" in done.err

    Path("config.yaml").write_text(yaml.safe_dump(SMALL))
    for key in ("total", "kind", "env.id", "hooks", EVIL):
        done = harmless("train", "config.yaml", "--out", "run", f"--{key}", json.dumps(EVIL))
        assert done.code == 2 and "[red]n[b]" in done.err, key
    harmless("train", "config.yaml", "--device", json.dumps(EVIL), "--print_config")


def test_a_terminal_that_is_redrawn_shows_it_in_one_row(monkeypatch: pytest.MonkeyPatch):
    with terminal(monkeypatch, 70) as written:
        drawn = Rows()
        drawn.add_task(EVIL)
        drawn.details = [EVIL * 5]
        with drawn.shown():
            drawn.say(EVIL)
    text = written.decode()
    for code in ("\x1b]", "\x07", "\x9b", "\x7f", "\u202e"):
        assert code not in text
    assert SHOWN in text
    assert max(map(cell_len, rows(written))) <= 70


def test_warnings_and_tracebacks_are_harmless(capsys: pytest.CaptureFixture[str]):
    with output.safe_warnings(), warnings.catch_warnings():
        warnings.simplefilter("always")
        assert SHOWN in warnings.formatwarning(EVIL, UserWarning, "file", 1)
        own = warnings.formatwarning(EVIL, UserWarning, output.__file__, 1)
        assert own == f"rlplast: {SHOWN}\n"
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        output.show_error(type(error), error, error.__traceback__)
    printed = capsys.readouterr().err
    assert f"ValueError: {SHOWN}" in printed and not OBEYED.findall(printed)


def test_letters_that_are_only_foreign_stay_as_they_are(tmp_path: Path):
    name = "ünï 名前 עברית 🙂 a\tb"
    run = write_run(tmp_path / name, metric_rows(float, [1000]))
    assert name.replace("\t", " ") in " ".join(command("show", run).out.split())
    assert printed("show", run)["folder"] == str(run)


def test_help_fits_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in COMMANDS:
        assert max(map(len, command(name, "--help").out.splitlines())) <= 80, name


def test_lines_of_a_terminal_break_between_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = "rlplast: " + " ".join(f"word-{number}" for number in range(40)) + " " + "long" * 30
    screen, file = io.StringIO(), io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    output.warn(text, screen)
    output.warn(text, file)
    assert file.getvalue() == text + "\n"
    *lines, last = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 80 < len(last)  # one word of its own
    assert " ".join([*lines, last]) == text
