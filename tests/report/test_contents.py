"""What a report writes: the page, what it escapes, what it loads, and the files beside it."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rlplast.report.frame import read
from rlplast.report.view import report_of
from tests.report.pages import Page, reported, written
from tests.report.runs import receipt_row, write_study

ARMS, KEY = ["none", "fire", "full_reset"], "eval/return_mean"
HOSTILE = "<script>alert(1)</script><img src=x onerror=\"alert('2')\">&amp;"
FILES = {"report.html", "summary.csv", "runs.csv", "curves.csv"}


def test_page_loads_nothing_and_its_links_lead_somewhere(plain: tuple[Path, str]):
    folder, text = plain
    found = Page(text)
    ids = [attrs["id"] for _, attrs in found.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in found.elements:
        assert (attrs.get("src") or "data:image/svg+xml,").startswith("data:image/svg+xml,")
        assert not {"srcset", "action", "data", "background"} & attrs.keys()
        link = attrs.get("href") or "data:,"
        if link.startswith("#"):
            assert link[1:] in ids
        elif link != "data:,":
            assert tag == "a" and (folder / link).is_file()
    assert "default-src 'none'" in text  # the browser refuses what the page would load
    rest = re.sub(r'<script type="application/gzip".*?</script>', "", text)
    hosts = set(re.findall(r"https?:(?://|%2F%2F)([\w.-]+)", rest))
    assert hosts <= {"www.w3.org", "vega.github.io"}  # names of formats


def test_every_chart_has_files_and_every_arm_a_box_and_rows(plain: tuple[Path, str]):
    folder, text = plain
    pictures = set(re.findall(r'id="chart-([^"]+)"', text))
    assert len(pictures) == 4
    files = {f"{name}.{kind}" for name in pictures for kind in ("svg", "png")}
    assert {path.name for path in folder.iterdir()} == files | FILES
    for name in pictures:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg " in (folder / f"{name}.svg").read_text()
    boxes = [own["data-toggles"] for _, own in Page(text).elements if "data-toggles" in own]
    rows = set(re.findall(r'<tr data-arm="(\d)"><td>(?:<svg.*?</svg>)(\w+)<', text))
    assert rows == set(zip(boxes, ARMS, strict=True))
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert json.loads(data)["arms"] == ARMS and set(json.loads(data)["charts"]) == pictures


def test_csv_files_hold_the_numbers_of_the_page_and_of_the_runs(plain: tuple[Path, str]):
    folder, text = plain
    found = {
        name: list(csv.DictReader((folder / f"{name}.csv").read_text().splitlines()))
        for name in ("summary", "runs", "curves")
    }
    rows = report_of(read([folder.parent / "demo"])).summary.rows.to_dict("records")
    for row, own in zip(found["summary"], rows, strict=True):
        for name, value in own.items():
            assert row[name] == ("" if value is None or value != value else str(value))
    heads, *shown = next(own for heading, own in Page(text).tables if heading == "Runs")
    column = heads.index("final score")
    for row, cells in zip(found["runs"], shown, strict=True):
        assert row["arm"] == cells[0]
        assert float(row["final"]) == pytest.approx(float(cells[column]), rel=1e-2)
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in found["curves"]:
        assert (row["task"], row["unit"], row["score"]) == ("asterix", "env_steps", KEY)
        own = curves.setdefault((row["arm"], row["seed"]), [])
        own.append((float(row["x"]), float(row["value"])))
    assert len(curves) == 15
    for (arm, seed), points in curves.items():
        (path,) = folder.parent.glob(f"demo/cells/asterix/seed-{seed}/{arm}-*/metrics.jsonl")
        lines = map(json.loads, path.read_text().splitlines())
        assert points == [(own["env_steps"], own[KEY]) for own in lines if KEY in own]


def test_a_report_repeats_byte_for_byte_and_replaces_its_own_files_alone(
    tmp_path: Path, quick: None
):
    study, outs = write_study(tmp_path, seeds=(1, 2)), [tmp_path / name for name in "ab"]
    outs[1].mkdir()
    (outs[1] / "report.html").write_text("old")
    (outs[1] / "notes.txt").write_text("mine")
    for out in outs:
        written(study, out)
    files, again = ({path.name: path.read_bytes() for path in out.iterdir()} for out in outs)
    assert again == files | {"notes.txt": b"mine"}


def assert_harmless(found: Page) -> None:
    tags = [tag for tag, _ in found.elements]
    assert tags.count("script") == 3  # data, Vega, and what hides arms
    images = [attrs["src"] or "" for tag, attrs in found.elements if tag == "img"]
    assert all(own.startswith("data:image/svg+xml,") for own in images)
    assert not [key for _, attrs in found.elements for key in attrs if key.startswith("on")]


def test_names_from_files_are_escaped_everywhere(tmp_path: Path, quick: None):
    """Folders have plain names; study.json, run.json, config and receipts hold markup."""
    statuses, config = {("asterix", "fire", 2): "failed"}, {HOSTILE: HOSTILE}
    study = write_study(tmp_path, ("none", "fire"), (1, 2), statuses=statuses, config=config)
    text = (study / "study.json").read_text()
    for name in ("demo", "asterix", "fire"):
        text = text.replace(f'"{name}"', json.dumps(HOSTILE))
    (study / "study.json").write_text(text)
    (run,) = study.glob("cells/asterix/seed-1/fire-*")
    stored = json.loads((run / "run.json").read_text()) | {"versions": {HOSTILE: HOSTILE}}
    (run / "run.json").write_text(json.dumps(stored))
    row = receipt_row(HOSTILE, 3000, network=HOSTILE) | {"followers": {HOSTILE: HOSTILE}}
    (run / "receipts.jsonl").write_text(json.dumps(row) + "\n")
    found = Page(written(study, tmp_path / "out"))
    assert_harmless(found)
    # it is all there, as text: name, arm, task, note of a missing run, config, version
    assert found.text.count(HOSTILE) >= 10


@pytest.mark.parametrize(
    ("changes", "message", "absent"),
    [
        ({"arms": ("none",), "seeds": (1,)}, "fewer than 5 seeds", "P(improvement)"),
        ({"key": "eval/loss"}, "lower is better", "higher is better"),
    ],
)
def test_page_says_what_is_so_and_nothing_else(
    changes: dict[str, Any], message: str, absent: str, tmp_path: Path, quick: None
):
    found = reported(tmp_path, **({"seeds": (1, 2)} | changes))
    assert message in found.text and absent not in found.text
    ids = {attrs.get("id") for _, attrs in found.elements}
    assert "numbers" in ids and "profiles" not in ids
    assert ("show-0" in ids) == ("arms" not in changes)  # one arm has no box
    cells = [cell for _, rows in found.tables for row in rows for cell in row]
    assert not [cell for cell in cells if re.search(r"\d \[", cell)]  # no intervals of 2 seeds


@pytest.mark.slow
def test_page_of_200_runs_is_at_most_2_megabytes(tmp_path: Path):
    arms = ("none", *(f"arm_{number}" for number in range(19)))
    study = write_study(tmp_path, arms=arms, seeds=range(10), every=60)
    assert len(written(study, tmp_path / "out")) < 2_000_000
