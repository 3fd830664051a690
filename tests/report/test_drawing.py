"""Pictures are drawn by another process: what it cannot draw, and how it may end."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlplast.report import drawing
from rlplast.report.charts import CONFIG, VERSION
from rlplast.report.plot import draw_run
from tests.report.pages import written
from tests.report.runs import metric_rows, write_study

GOOD = draw_run([{"updates": 1, "train/loss": 2.0}], [])
FIRST = json.dumps({"svg": "<svg/>", "png": ""})


def draw(specs: dict[str, Any]) -> tuple[dict[str, drawing.Picture], list[str]]:
    """The pictures, and the lines on those that could not be drawn."""
    messages: list[str] = []
    return drawing.draw(specs, VERSION, CONFIG, messages.append), messages


def ending(patch: pytest.MonkeyPatch, folder: Path, end: str) -> None:
    """Let the process that draws answer once and then end so."""
    (folder / "stub.py").write_text(f"import os, sys, time\nprint({FIRST!r}, flush=True)\n{end}\n")
    patch.setattr(drawing, "__file__", str(folder / "stub.py"))


def plotted(folder: Path, before: str, closed: str = "") -> subprocess.CompletedProcess[str]:
    """Draw a run's picture in a process of its own; an error is said, and no failure."""
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, metric_rows(float, [1]))))
    (folder / "receipts.jsonl").write_text("")
    (folder / "plot.png").write_bytes(b"older")
    code = (
        f"import resource, sys\nfrom pathlib import Path\n"
        f"from rlplast.core.errors import RlplastError\n"
        f"from rlplast.report.plot import plot_run\n{before}\n"
        f"try: plot_run(Path({str(folder)!r}), Path({str(folder / 'plot.png')!r}))\n"
        f"except RlplastError as error: print(error)\n"
    )
    shell = f'exec "$0" -c "$1" {closed}'
    words = ["bash", "-c", shell, sys.executable, code]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_without_address_space_a_picture_is_one_line_and_the_program_goes_on(tmp_path: Path):
    done = plotted(tmp_path, "resource.setrlimit(resource.RLIMIT_AS, (6_000_000_000,) * 2)")
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"picture {tmp_path / 'plot.png'} is not drawn: ")
    assert "addresses are limited to 6 GB" in line and line.endswith("raise `ulimit -v`")
    assert not (tmp_path / "plot.png").exists()  # the older one shows less than there is now


def test_pictures_need_no_standard_streams(tmp_path: Path):
    assert plotted(tmp_path, "", "<&- >&- 2>&-").returncode == 0
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_one_process_draws_them_all_but_what_cannot_be_drawn(monkeypatch: pytest.MonkeyPatch):
    started: list[Any] = []
    start = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: (started.append(a), start(*a, **k))[1])
    found, (line,) = draw({"a": GOOD, "b": {"mark": "nothing of the kind"}, "c": GOOD})
    assert list(found) == ["a", "c"] and found["a"] == found["c"]
    assert found["a"].png.startswith(b"\x89PNG") and found["a"].svg.startswith("<svg")
    assert line.startswith("picture b is not drawn: ") and "\n" not in line
    assert len(started) == 1
    assert draw({}) == ({}, []) and len(started) == 1


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("sys.exit(3)", "exit code 3"),
        ("sys.stdout.write('{\"sv')", "exit code 0"),
        ("raise MemoryError('of its own')", "MemoryError: of its own"),
        ("time.sleep(600)", "longer than 3 s"),
    ],
)
def test_what_was_drawn_before_the_process_ended_is_kept(
    end: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(drawing, "_START", 3.0)
    monkeypatch.setattr(drawing, "_EACH", 0.0)
    ending(monkeypatch, tmp_path, end)
    for names, start in (("abc", "b and 1 after it are not"), ("ab", "b is not")):
        found, (line,) = draw(dict.fromkeys(names, GOOD))
        assert list(found) == ["a"]
        assert line.startswith(f"picture {start} drawn: ") and why in line


def test_a_report_is_written_without_pictures_and_older_ones_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, lines = tmp_path / "out", []
    ending(monkeypatch, tmp_path, "os.kill(os.getpid(), 9)")
    out.mkdir()
    (out / "curve-asterix.svg").write_text("older")
    (out / "score-asterix.svg").write_text("older")
    page = written(write_study(tmp_path, seeds=(1,)), out, warn=lines.append)
    assert "curve-asterix" in page
    pictures = {path.name for path in out.iterdir() if path.suffix in (".svg", ".png")}
    assert pictures == {"score-asterix.svg", "score-asterix.png"}
    assert (out / "score-asterix.svg").read_text() == "<svg/>"
    (line,) = lines
    assert "after it are not drawn" in line
