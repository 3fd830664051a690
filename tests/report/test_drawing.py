"""Pictures are drawn by another process: how it may end, and what is written then."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlplast.core.errors import RlplastError
from rlplast.report import drawing
from rlplast.report.plot import draw_run
from tests.report.pages import written
from tests.report.runs import metric_rows, write_study

GOOD = draw_run([{"updates": 1, "train/loss": 2.0}], [])


def ending(patch: pytest.MonkeyPatch, folder: Path, end: str) -> None:
    """Let the process that draws end so."""
    (folder / "stub.py").write_text(f"import os, sys\n{end}\n")
    patch.setattr(drawing, "__file__", str(folder / "stub.py"))


def test_without_address_space_a_picture_is_one_line_and_the_program_goes_on(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, metric_rows(float, [1]))))
    (tmp_path / "receipts.jsonl").write_text("")
    (tmp_path / "plot.png").write_bytes(b"older")
    code = (
        f"import resource\nfrom pathlib import Path\n"
        f"from rlplast.core.errors import RlplastError\n"
        f"from rlplast.report.plot import plot_run\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (6_000_000_000,) * 2)\n"
        f"try: plot_run(Path({str(tmp_path)!r}))\n"
        f"except RlplastError as error: print(error)\n"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"picture {tmp_path / 'plot.png'} is not drawn: ")
    assert line.endswith("raise `ulimit -v`")
    assert not (tmp_path / "plot.png").exists()  # the older one shows less than there is now


def test_one_process_draws_them_all(monkeypatch: pytest.MonkeyPatch):
    started: list[Any] = []
    start = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: (started.append(a), start(*a, **k))[1])
    found = drawing.draw({"a": GOOD, "b": GOOD})
    assert list(found) == ["a", "b"] and found["a"] == found["b"]
    assert found["a"].png.startswith(b"\x89PNG") and found["a"].svg.startswith("<svg")
    assert len(started) == 1
    assert drawing.draw({}) == {} and len(started) == 1


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("sys.exit(3)", "exit code 3"),
        ("raise MemoryError('of its own')", "MemoryError: of its own"),
    ],
)
def test_how_the_process_ended_is_said(
    end: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ending(monkeypatch, tmp_path, end)
    with pytest.raises(RlplastError, match=why):
        drawing.draw({"a": GOOD})


def test_a_report_is_written_without_pictures_and_older_ones_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, lines = tmp_path / "out", []
    ending(monkeypatch, tmp_path, "sys.exit('broken')")
    out.mkdir()
    (out / "curve-asterix.svg").write_text("older")
    page = written(write_study(tmp_path, seeds=(1,)), out, warn=lines.append)
    assert "curve-asterix" in page
    assert not [path for path in out.iterdir() if path.suffix in (".svg", ".png")]
    assert lines == ["pictures are not drawn: broken"]
