"""The page of a report: what it says, in numbers computed here; what it escapes; what it loads."""

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rlplast.report.arm_styles import arm_styles
from rlplast.report.contents import write_report
from rlplast.report.gather import gather
from rlplast.report.numbers import estimate, judged, number
from rlplast.report.page import Details, Row, Section, Table, Text, page
from rlplast.report.records import MOST
from rlplast.report.summary import summarise
from rlplast.report.trust import p_words
from rlplast.report.view import Report
from rlplast.run import api
from tests.report.runs import receipt_row, write_run, write_study
from tests.supervised_runs import small_supervised

VOID = {"meta", "link", "input", "br", "img", "hr"}
HOSTILE = "<script>alert(1)</script><img src=x onerror=\"alert('2')\">&amp;"


class Page(HTMLParser):
    """Elements with their attributes, tables as text, and whether tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[tuple[str, list[list[str]]]] = []  # with the heading above
        self.paragraphs: list[tuple[str | None, str]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self._heading = ""
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag in ("h2", "h3"):
            self._heading = ""
        if tag == "table":
            self.rows: list[list[str]] = []
            self.tables.append((self._heading, self.rows))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._end = "end" in (dict(attrs).get("class") or "").split()
            if not self._end:
                self.rows[-1].append("")
        if tag == "p":
            self.paragraphs.append((dict(attrs).get("class"), ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"style", "script"} & set(self._open):
            return
        self.words.append(data)
        if {"h2", "h3"} & set(self._open):
            self._heading += data
        if {"td", "th"} & set(self._open):  # the ends of an interval have cells of their own
            self.rows[-1][-1] += f" {data}" if self._end else data
        if "p" in self._open:
            kind, text = self.paragraphs[-1]
            self.paragraphs[-1] = (kind, text + data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def under(self, heading: str) -> list[list[str]]:
        """The first table below a heading."""
        return next(rows for own, rows in self.tables if own == heading)

    def table(self, *columns: str) -> dict[str, dict[str, str]]:
        """First cell of a row → column → cell, of the first table with these columns."""
        for _, rows in self.tables:
            if set(columns) <= set(rows[0]):
                return {row[0]: dict(zip(rows[0], row, strict=False)) for row in rows[1:]}
        raise AssertionError(f"no table with {columns}")


def written(study: Path, out: Path) -> str:
    found = gather([study])
    return write_report(found, summarise(found), out).read_text(encoding="utf-8")


def reported(folder: Path, **changes: Any) -> Page:
    return Page(written(write_study(folder, **changes), folder / "out"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the page of an ordinary report: one task, three arms, five seeds."""
    folder = tmp_path_factory.mktemp("plain")
    return folder / "out", written(write_study(folder, seeds=range(1, 6)), folder / "out")


def test_tables_say_the_numbers_of_the_summary(plain: tuple[Path, str]):
    found = Page(plain[1])
    rows = summarise(gather([plain[0].parent / "demo"])).rows
    assert [row.arm for row in rows] == ["none", "fire", "full_reset"]
    heads = ("final score (eval/return_mean)", "P(improvement)", "difference", "p (Holm)")
    heads += ("human-normalised", "area under the curve", "area from the branch on")
    results, drops = found.table(*heads), found.table("drop", "seeds that recovered")
    for row in rows:
        estimates = [estimate(own) for own in (row.final, row.improvement, judged(row.difference))]
        shown = number(None) if row.p_holm is None else p_words(row.p_holm)
        estimates += [shown, *map(estimate, (row.normalised, row.auc, row.auc_after))]
        assert [results[row.arm][head] for head in heads] == estimates
        assert results[row.arm]["seeds"] == "5"
        times = number(row.recovery), "5 of 5"
        assert list(drops[row.arm].values())[1:] == [
            *map(estimate, (row.drop, row.lost_area)),
            *times,
        ]
    assert drops["fire"]["time to recover (env steps)"] == "500"


def test_ends_are_the_means_of_what_was_measured_last(tmp_path: Path, quick: None):
    last = {
        "fire": [(0.1, 3e42, 2.0), (0.3, 1e42, None)],
        "full_reset": [(0.2, 5.0, 4.0), (0.4, 7.0, 6.0)],
    }
    for arm, seeds in last.items():
        for seed, (ece, bound, hessian) in enumerate(seeds):
            rows = [
                {"updates": 1, "env_steps": 100, "eval/ece": 9.0, "eval/accuracy": 0.5},
                {"updates": 1, "env_steps": 100, "metric/lipschitz_bound/q": 1.0},
                {"updates": 2, "env_steps": 6000, "eval/ece": ece, "eval/accuracy": 0.5},
                {"updates": 2, "env_steps": 6000, "metric/lipschitz_bound/q": bound}
                | {"metric/hessian_max_eigenvalue/q": hessian, "metric/spectral_norm/q/fc": 1.0},
            ]
            config = {"seed": seed, "hooks": [{"method": arm, "at": "50%"}]}
            write_run(tmp_path / "runs" / arm / str(seed), rows, config=config)
    found = Page(written(tmp_path / "runs", tmp_path / "out"))
    head = ("eval/ece", "lipschitz_bound (q)", "hessian_max_eigenvalue (q)")
    first, second = found.table(*head).values()
    assert set(first) == {"arm", "eval/accuracy", *head}  # no tensors
    assert [first[name] for name in head] == ["0.200", "2.00e+42", "2.00"]
    assert [second[name] for name in head] == ["0.300", "6.00", "5.00"]


def test_what_was_measured_right_after_a_firing_is_not_of_the_end(tmp_path: Path, quick: None):
    """A full reset to θ0 leaves no distance from it; the run without one goes on from there."""
    changes = {
        "stream": {"name": "warm_start", "fraction": 0.4, "epochs": 1},
        "metrics": {"every": "1 phase", "names": ["weight_norm", "weight_difference"]},
        "penalties": [],
        "checkpoint": {"every": "100%"},
    }
    reset = {"method": "full_reset", "on": "phase_start", "params": {"init": "stored"}}
    for name, hooks in {"none": [], "reset": [reset]}.items():
        api.train(small_supervised(hooks=hooks, **changes), tmp_path / "runs" / name)
    found = Page(written(tmp_path / "runs", tmp_path / "out"))
    key = "weight_difference (model)"
    end, right_after = (
        {row[0]: row[rows[0].index(key)] for row in rows[1:]}
        for _, rows in found.tables
        if key in rows[0]
    )
    assert all(float(value) > 0 for value in end.values())
    moved = {arm: float(value) > 0 for arm, value in right_after.items()}
    assert moved == {"none": True, "full_reset on phase_start": False}


@pytest.mark.parametrize(
    ("stream", "head", "expected"),
    [
        ("repeated", "best at phase (0 included)", "4, 7, –"),
        ("single", "best at env steps", "1500, 3000, –"),
    ],
)
def test_scores_say_where_each_run_was_at_its_best(
    tmp_path: Path, quick: None, stream: str, head: str, expected: str
):
    study = write_study(tmp_path, arms=("none", "fire"), config={"stream": {"name": stream}})
    for seed, phase in ((1, 4), (2, 7)):
        (folder,) = study.glob(f"cells/*/seed-{seed}/fire-*")
        clock = {"updates": 750 * seed, "env_steps": 1500 * seed, "phase": phase}
        best = {"metric": "return_mean", "value": 0.5, "checkpoint": "best-1", "clock": clock}
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "best.json").write_text(json.dumps(best))
    scores = Page(written(study, tmp_path / "out")).table(head)
    assert {arm: cells[head] for arm, cells in scores.items()} == {
        "none": "–, –, –",
        "fire": expected,
    }


def test_cost_counts_each_prefix_once(plain: tuple[Path, str]):
    # a run takes 60 s, 30 s of which are its prefix's; 5 seeds of 3 arms
    text = next(text for _, text in Page(plain[1]).paragraphs if "prefixes" in text)
    assert "would have taken 900 s" in text
    assert "it took 600 s, 33% less" in text
    row = Page(plain[1]).table("after the branch", "shared prefix")["fire"]
    assert [row[k] for k in ("seconds", "after the branch", "shared prefix")] == [
        "60.0",
        "30.0",
        "30.0",
    ]


def test_page_loads_nothing_and_its_links_lead_somewhere(plain: tuple[Path, str]):
    folder, text = plain
    found = Page(text)
    ids = [attrs["id"] for _, attrs in found.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in found.elements:
        assert (attrs.get("src") or "data:image/svg+xml,").startswith("data:image/svg+xml,")
        assert not {"srcset", "action", "data", "background"} & attrs.keys()
        for key in ("href", "xlink:href"):
            link = attrs.get(key)
            if link is not None and link.startswith("#"):
                assert link[1:] in ids
            elif link is not None and link != "data:,":
                assert tag == "a"
                assert (folder / link).is_file()
    assert "default-src 'none'" in text  # the browser refuses what the page would load


def test_every_chart_is_there_as_svg_and_png(plain: tuple[Path, str]):
    folder, text = plain
    pictures = re.findall(r'id="chart-([^"]+)"', text)
    assert len(pictures) >= 6
    files = {path.name for path in folder.iterdir()}
    expected = {f"{name}.{kind}" for name in pictures for kind in ("svg", "png")}
    assert files == expected | {"report.html", "summary.csv"}
    for name in pictures:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg " in (folder / f"{name}.svg").read_text()
    with (folder / "summary.csv").open() as file:
        assert [row["arm"] for row in csv.DictReader(file)] == ["none", "fire", "full_reset"]


def test_every_arm_has_a_box_and_can_be_told_in_tables_and_charts(plain: tuple[Path, str]):
    found = Page(plain[1])
    boxes = [attrs for tag, attrs in found.elements if "data-toggles" in attrs]
    assert [box["data-toggles"] for box in boxes] == ["0", "1", "2"]
    for arm in "012":
        rows = [t for t, attrs in found.elements if attrs.get("data-arm") == arm and t == "tr"]
        assert len(rows) >= 4
    lines = re.findall(r"<tr([^>]*)><td>(?:<svg.*?</svg>)(\w+)<", plain[1])
    expected = {
        f'data-arm="{arm}"': name for arm, name in enumerate(("none", "fire", "full_reset"))
    }
    assert {attrs.strip(): name for attrs, name in lines} == expected
    data = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', plain[1], re.DOTALL
    )
    assert data is not None
    stored = json.loads(data[1])
    assert stored["arms"] == ["none", "fire", "full_reset"]
    for spec in stored["charts"].values():
        (shown,) = [own["value"] for own in spec["params"] if own["name"] == "shown"]
        assert shown == stored["arms"]


def test_a_report_repeats_byte_for_byte_and_replaces_no_other_files(
    plain: tuple[Path, str], tmp_path: Path
):
    (tmp_path / "report.html").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    written(plain[0].parent / "demo", tmp_path)
    files = {path.name: path.read_bytes() for path in plain[0].iterdir()}
    again = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert again == files | {"notes.txt": b"mine"}


def assert_harmless(found: Page) -> None:
    tags = [tag for tag, _ in found.elements]
    assert tags.count("script") == 3  # data, Vega, and what hides arms
    images = [attrs["src"] or "" for tag, attrs in found.elements if tag == "img"]
    assert all(own.startswith("data:image/svg+xml,") for own in images)
    assert not [key for _, attrs in found.elements for key in attrs if key.startswith("on")]


@pytest.mark.slow
def test_names_from_files_are_escaped_everywhere(tmp_path: Path):
    """Folders have plain names; study.json, run.json, config and receipts hold markup."""
    statuses, config = {("asterix", "fire", 2): "failed"}, {HOSTILE: HOSTILE}
    study = write_study(
        tmp_path, arms=("none", "fire"), seeds=(1, 2), statuses=statuses, config=config
    )
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


def test_text_of_any_part_is_escaped():
    arms = arm_styles((HOSTILE, "b"), None)
    table = Table((HOSTILE,), (Row((HOSTILE,), 0),), HOSTILE, title=HOSTILE)
    parts = (Text(HOSTILE), table, Details(HOSTILE, HOSTILE, 1))
    assert_harmless(Page(page(HOSTILE, arms, [Section("a", HOSTILE, parts)] * 2, HOSTILE)))


def test_long_names_of_tasks_have_files_and_updates_are_no_tasks(tmp_path: Path):
    config = {
        "stream": {"name": "random_labels", "phases": 5, "epochs": 40},
        "total": "6000 updates",
    }
    study = write_study(tmp_path, ("none",), (1, 2), ("x" * 150, "x" * 151), config=config)
    found = gather([study])
    report = Report(found, summarise(found))
    assert len({*report.slugs.values()}) == 3 and max(map(len, report.slugs.values())) < 100
    assert {report.axis(task) for task in report.tasks} == {("updates", 1)}


def test_missing_runs_are_said_plainly(tmp_path: Path, quick: None):
    statuses = {("asterix", "fire", 2): "failed", ("asterix", "none", 3): "absent"}
    found = reported(tmp_path, statuses=statuses)
    assert "7 runs are done, 2 are not" in found.text
    (bad,) = [text for kind, text in found.paragraphs if kind == "bad"]
    assert bad == "2 cells are in no number below; 1 of them failed."
    assert "asterix/seed-2/fire: failed with exit 1" in found.text
    assert "asterix/seed-3/none: not started" in found.text


@pytest.mark.parametrize(
    ("changes", "message", "absent"),
    [
        ({"arms": ("none",), "seeds": (1,)}, "fewer than 5 seeds", "P(improvement)"),
        ({"baseline": None}, "There is no baseline", "P(improvement)"),
        ({"baseline": None}, "There is no baseline", "Comparison"),
        ({"key": "eval/loss"}, "lower is better", "higher is better"),
    ],
)
def test_page_says_what_is_so_and_nothing_else(
    changes: dict[str, Any], message: str, absent: str, tmp_path: Path, quick: None
):
    found = reported(tmp_path, **({"seeds": (1, 2)} | changes))
    assert message in found.text
    assert absent not in found.text
    if "arms" in changes:  # one run: no intervals, no boxes
        cells = [cell for _, rows in found.tables for row in rows for cell in row]
        assert not [cell for cell in cells if re.search(r"\d \[", cell)]
        assert "input" not in {tag for tag, _ in found.elements}


def test_scores_of_tasks_without_a_common_scale_are_not_averaged(tmp_path: Path, quick: None):
    found = reported(tmp_path, tasks=("asterix", "mini"), seeds=range(5))
    rows = found.under("all tasks")
    assert rows[0] == ["arm", "P(improvement)", "runs"]
    assert "share no scale" in found.text
    assert "final score (eval/return_mean)" in found.under("mini")[0]


def test_two_seeds_have_no_number_that_compares_arms(tmp_path: Path, quick: None):
    found = reported(tmp_path, tasks=("asterix", "mini"), seeds=(1, 2))
    assert re.search(r"Too few seeds to judge against none\s+\(2; at least 5\)", found.text)
    heads = {cell for _, rows in found.tables for cell in rows[0]}
    assert "final score (eval/return_mean)" in heads
    assert not {"P(improvement)", "difference", "p (Holm)"} & heads
    assert "chart-improvement" not in {attrs.get("id") for _, attrs in found.elements}


def test_scores_of_tasks_with_a_common_scale_are_averaged(tmp_path: Path, quick: None):
    found = reported(tmp_path, tasks=("asterix", "breakout"), seeds=(1, 2))
    assert found.under("all tasks")[0][1] == "final score (human-normalised)"


def receipt_lines(folder: Path, receipts: dict[int, list[dict]]) -> list[dict[str, str]]:
    """The rows of the receipts' table, of runs with these receipts by seed."""
    rows = [{"updates": 5, "env_steps": x, "eval/return_mean": 1.0} for x in (500, 6000)]
    for seed, own in receipts.items():
        write_run(folder / "runs" / str(seed), rows, own, {"seed": seed})
    found = Page(written(folder / "runs", folder / "out"))
    (table,) = [rows for _, rows in found.tables if "sfe" in rows[0]]
    return [dict(zip(table[0], row, strict=True)) for row in table[1:]]


def test_receipts_are_means_over_seeds_and_sums_over_updates(tmp_path: Path, quick: None):
    receipts = {
        seed: [receipt_row("fire", x) | {"sfe": float(seed)} for x in (1000, 2000)]
        + [
            receipt_row("swr", x, norm=None) | {"firings": 10, "sfe": seed * x / 1000}
            for x in (3000, 4000)
        ]
        for seed in (1, 2)
    }
    lines = receipt_lines(tmp_path, receipts)
    columns = ("method", "clock (env steps)", "seeds", "firings", "sfe")
    assert [tuple(line[column] for column in columns) for line in lines] == [
        ("fire", "1,000", "2", "1", "1.50"),
        ("fire", "2,000", "2", "1", "1.50"),
        ("swr", "3,000 to 4,000", "2", "20", "10.5"),  # (3 + 4) and 2 (3 + 4), their mean
    ]
    assert "dfi before" not in lines[0]  # nobody measured it


def test_a_hook_that_fires_often_is_one_row(tmp_path: Path, quick: None):
    fired = [receipt_row("fire", 10 * x, norm=float(x)) for x in range(1, MOST + 2)]
    (line,) = receipt_lines(tmp_path, {1: fired})
    assert line["clock (env steps)"] == f"10 to {10 * (MOST + 1)}"
    assert (line["firings"], line["sfe"]) == (str(MOST + 1), f"{1.5 * (MOST + 1):.2f}")
    assert line["norm after"] == f"{MOST + 1:.2f}"  # the last


def test_configs_show_what_differs_and_the_whole(tmp_path: Path, quick: None):
    found = reported(tmp_path, seeds=(1, 2))
    rows = {row[0]: row[1:] for row in found.under("What differs")}
    assert rows["arm"] == ["hooks"]
    assert rows["none"] == ["[]"]
    assert "full_reset" in rows["full_reset"][0]
    assert found.text.count("total: 6000 env_steps") == 3


def test_every_run_has_a_row_with_what_its_arm_has_not(tmp_path: Path, quick: None):
    study = write_study(tmp_path, arms=("none", "fire"), seeds=(1, 2))
    (run,) = study.glob("cells/asterix/seed-2/fire-*/config.yaml")
    run.write_text(run.read_text().replace("threads: 1", "threads: 7"))
    found = Page(written(study, tmp_path / "out")).under("Runs")
    column = found[0].index("config of its own")
    rows = {(row[0], row[found[0].index("seed")]): row[column] for row in found[1:]}
    assert rows == {
        ("none", "1"): "",
        ("none", "2"): "",
        ("fire", "1"): "threads: 1",
        ("fire", "2"): "threads: 7",
    }


def test_mixed_versions_are_said_plainly(tmp_path: Path, quick: None):
    study = write_study(tmp_path, seeds=(1, 2))
    run = next(study.glob("cells/asterix/seed-1/fire-*/run.json"))
    run.write_text(json.dumps(json.loads(run.read_text()) | {"versions": {"rlplast": "9"}}))
    found = Page(written(study, tmp_path / "out"))
    assert ("bad", "Not all runs have the same rlplast.") in found.paragraphs
    row = next(row for row in found.under("Versions") if row[0] == "rlplast")
    assert row[1] == "0.4.0 (5 of 6 runs); 9 (1 of 6 runs)"


@pytest.mark.slow
def test_page_of_200_runs_is_at_most_2_megabytes(tmp_path: Path):
    arms = ("none", *(f"arm_{number}" for number in range(19)))
    study = write_study(tmp_path, arms=arms, seeds=range(10), every=60)
    assert len(written(study, tmp_path / "out")) < 2_000_000
