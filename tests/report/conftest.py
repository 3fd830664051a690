"""What several tests of reports share."""

import json
from pathlib import Path

import pytest

from rlplast.report.vega import WHOLE
from tests.report.drawn import undrawn
from tests.report.pages import written
from tests.report.runs import write_study


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what the page says: its charts are not drawn, and Vega is left out."""
    monkeypatch.setattr("rlplast.report.drawing.draw", undrawn)
    monkeypatch.setattr("rlplast.report.contents._vega", lambda: "")


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the page of an ordinary report: one task, three arms, five seeds.

    A metric is also one of layers, one of them called as the choice of all.
    """
    folder = tmp_path_factory.mktemp("plain")
    study = write_study(folder, seeds=range(1, 6))
    for path in study.rglob("metrics.jsonl"):
        more = {f"metric/srank/q{own}": 1.0 for own in ("", "/fc1", f"/{WHOLE}")}
        lines = [json.dumps(json.loads(own) | more) for own in path.read_text().splitlines()]
        path.write_text("\n".join(lines))
    return folder / "out", written(study, folder / "out")
