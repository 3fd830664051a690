"""Tables: how a data frame is shown, and what the report's own say of runs by hand."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rlplast.report import tables
from rlplast.report.arms import looks
from rlplast.report.frame import read
from rlplast.report.numbers import NOTHING
from rlplast.report.tables import MOST, Table, table
from rlplast.report.view import Report, report_of
from rlplast.report.words import p_words
from tests.report.runs import receipt_row, write_run, write_study

NAN, ARMS = math.nan, ("none", "fire", "full_reset")


def rows_of(found: Table) -> list[dict[str, str]]:
    """Head → cell of each row."""
    return [dict(zip(found.head, cells, strict=True)) for _, cells in found.rows]


def by_arm(found: Table) -> dict[str, dict[str, str]]:
    return {row["arm"]: row for row in rows_of(found)}


def report_on(folder: Path, runs: dict[str, list[tuple[list, list]]]) -> Report:
    """A report on runs of arms: method → lines and receipts of each seed."""
    for arm, own in runs.items():
        hooks = [] if arm == "none" else [{"method": arm, "at": "50%"}]
        for seed, (lines, receipts) in enumerate(own, start=1):
            write_run(folder / f"{arm}-{seed}", lines, receipts, {"seed": seed, "hooks": hooks})
    return report_of(read([folder]))


def line(x: int, **numbers: float | None) -> dict[str, Any]:
    named = {name.replace("__", "/"): value for name, value in numbers.items()}
    return {"updates": x // 2, "env_steps": x} | named


# --- any table ---


def test_a_table_aligns_numbers_joins_intervals_and_leaves_out_what_is_empty():
    score = {"score": [1.5, -0.25, NAN], "score_low": [1.0, NAN, NAN], "score_high": [2, NAN, NAN]}
    alone = {"alone": [1.0, 2.0, NAN], "alone_low": [NAN] * 3, "alone_high": [NAN] * 3}
    words = {"words": ["<b> and", None, "a"], "p": ["< 0.1", "", "1"], "clip_low": ["x", "y", "z"]}
    nothing = {"nothing": ["", None, NOTHING], "unknown": [NAN] * 3}
    data = pd.DataFrame(
        {"arm": ["b", "a", "gone"], "count": [1, 12_000, 3]} | score | alone | words | nothing
    )
    found = table(data, looks(("a", "b"), None), "title", "caption")
    assert (found.title, found.caption) == ("title", "caption")
    assert found.head == ["arm", "count", "score", "alone", "words", "p", "clip_low"]
    assert found.numbers == [False, True, True, True, False, True, False]
    assert found.rows == [
        (1, ["b", "1", "1.50 [1.00, 2.00]", "1.00", "<b> and", "< 0.1", "x"]),
        (0, ["a", "12,000", "-0.250", "2.00", "", "", "y"]),
        (None, ["gone", "3", NOTHING, NOTHING, "a", "1", "z"]),
    ]
    assert table(data[:0], ()).rows == []


# --- those of a report ---


@pytest.mark.parametrize("key", ["eval/return_mean", "eval/loss"])
def test_numbers_are_those_of_the_summary_the_best_arm_first(key: str, tmp_path: Path):
    report = report_of(read([write_study(tmp_path, ARMS, range(5), key=key)]))
    found, rows = by_arm(tables.numbers(report, "asterix")), report.summary.rows
    assert list(found) == list(rows.sort_values("final", ascending=key == "eval/loss").arm)
    heads = {"final": f"final score ({key})", "improvement": "P(improvement)"}
    heads |= {"auc": "area under the curve", "auc_after": "area from the branch on"}
    for row in rows.to_dict("records"):
        own = found[row["arm"]]
        for name, head in (heads | {"difference": "difference"}).items():
            ends = [row[name], row[f"{name}_low"], row[f"{name}_high"]]
            shown = re.sub(r"[],[]", "", own[head].replace(NOTHING, "nan nan nan")).split()
            near = {"rel": 6e-3, "abs": 6e-3, "nan_ok": True}
            assert list(map(float, shown)) == pytest.approx(ends, **near)
        assert own["p (Holm)"] == ("" if math.isnan(row["p_holm"]) else p_words(row["p_holm"]))
        mean, _, deviation = map(str, own["mean ± SD"].split())
        finals = report.results.of("asterix", row["arm"]).final
        assert float(mean) == pytest.approx(finals.mean(), rel=6e-3)
        assert float(deviation) == pytest.approx(np.std(finals, ddof=1), rel=6e-3)
        assert own["runs"] == "5" and "diverged" not in own


def test_costs_count_each_prefix_once_and_drops_what_recovered(tmp_path: Path):
    report = report_of(read([write_study(tmp_path, seeds=range(5))]))
    found, words = tables.costs(
        report
    )  # 60 s a run, 30 s of them its prefix's, 25 s by its last line
    assert isinstance(found, Table) and isinstance(words, str)
    own = by_arm(found)["fire"]
    heads = ("seconds", "after the branch", "shared prefix")
    assert [own[head] for head in heads] == ["60.0", "30.0", "30.0"]
    assert own["updates"].startswith("3,000")
    assert "would have taken 900 s" in words and "it took 575 s, 36% less" in words
    (found,) = tables.drops(report)
    own, none = by_arm(found)["fire"], by_arm(found)["none"]
    assert (own["firings that recovered"], own["time to recover (env steps)"]) == ("5 of 5", "500")
    assert float(own["drop"].split()[0]) > 0 > float(none["drop"].split()[0])


def test_ends_are_the_means_of_what_was_measured_last(tmp_path: Path):
    def lines(ece: float, bound: float, hessian: float | None) -> list[dict]:
        last = line(6000, metric__bound__q=bound, metric__hessian__q=hessian)
        return [
            line(100, eval__ece=9.0, eval__accuracy=0.5),
            line(100, metric__bound__q=1.0),
            line(6000, eval__ece=ece, eval__accuracy=0.5),
            last | {"metric/spectral_norm/q/fc": 1.0},
        ]

    runs = {"fire": [(lines(0.1, 3e42, 2.0), []), (lines(0.3, 1e42, None), [])]}
    runs["none"] = [(lines(0.2, 5.0, 4.0), []), (lines(0.4, 7.0, 6.0), [])]
    (found,) = tables.ends(report_on(tmp_path / "runs", runs))
    own, heads = by_arm(found), ["eval/ece", "bound (q)", "hessian (q)"]
    assert set(own["none"]) == {"arm", "eval/accuracy", *heads}  # no tensors
    assert [own["fire at 50%"][head] for head in heads] == ["0.200", "2.00e+42", "2.00"]
    assert [own["none"][head] for head in heads] == ["0.300", "6.00", "5.00"]
    alone = report_on(tmp_path / "score", {"none": [([line(6000, eval__loss=1.0)], [])]})
    assert not list(tables.ends(alone))


def test_what_was_measured_right_after_the_first_firing_has_a_table(tmp_path: Path):
    lines = [
        own
        for x in (1000, 2000, 3000)
        for own in (line(x, metric__srank__q=x / 100), line(x, eval__return_mean=float(x)))
    ]
    fired = [receipt_row("fire", x) for x in (2000, 3000)]
    runs = {"fire": [(lines, fired), (lines, fired[1:])], "none": [(lines, [])] * 2}
    runs["swr"] = [(lines, [receipt_row("swr", 1000, norm=None)])]  # after each update: not one
    (found,) = tables.after_firing(report_on(tmp_path, runs))
    own = {arm: (row["srank (q)"], row["eval/return_mean"]) for arm, row in by_arm(found).items()}
    # the mean of 20 at 2000 and 30 at 3000; the others have it where one of their seed fired
    assert own == {
        "none": ("25.0", "2,500"),
        "fire at 50%": ("25.0", "2,500"),
        "swr at 50%": ("20.0", "2,000"),
    }


def test_receipts_are_means_over_seeds_and_sums_over_updates(tmp_path: Path):
    lines = [line(x, eval__return_mean=1.0) for x in (500, 6000)]
    seeds = [
        [receipt_row("fire", x) | {"sfe": float(seed)} for x in (1000, 2000)]
        + [
            receipt_row("swr", x, norm=None) | {"firings": 10, "sfe": seed * x / 1000}
            for x in (3000, 4000)
        ]
        for seed in (1, 2)
    ]
    (found,) = tables.receipts(report_on(tmp_path / "a", {"fire": [(lines, own) for own in seeds]}))
    columns = ("method", "clock (env steps)", "seeds", "firings", "sfe")
    assert [[row[column] for column in columns] for row in rows_of(found)] == [
        ["fire", "1,000", "2", "1.00", "1.50"],
        ["fire", "2,000", "2", "1.00", "1.50"],
        ["swr", "3,000 to 4,000", "2", "20.0", "10.5"],  # (3 + 4) and 2 (3 + 4), their mean
    ]
    assert "dfi before" not in rows_of(found)[0]  # nobody measured it
    assert rows_of(found)[0]["followers"] == "target: copy"
    often = [receipt_row("fire", 10 * x, norm=float(x)) for x in range(1, MOST + 2)]
    (found,) = tables.receipts(report_on(tmp_path / "b", {"fire": [(lines, often)]}))
    (row,) = rows_of(found)
    assert row["clock (env steps)"] == f"10 to {10 * (MOST + 1)}"
    assert (float(row["firings"]), float(row["sfe"])) == (MOST + 1, 1.5 * (MOST + 1))
    assert float(row["norm after"]) == MOST + 1  # the last


def test_configs_say_what_differs(tmp_path: Path):
    study = write_study(tmp_path, ARMS[:2], (1, 2), config={"clip_low": 0.1})
    for path in study.glob("cells/asterix/seed-2/fire-*/config.yaml"):
        text = path.read_text().replace("threads: 1", "threads: 7")
        path.write_text(text.replace("clip_low: 0.1", "clip_low: 0.2"))
    report = report_of(read([study]))
    (differs,) = tables.configs(report)
    assert isinstance(differs, Table)
    own = by_arm(differs)
    assert set(own["none"]) == {"arm", "hooks", "threads", "clip_low"}
    assert (own["none"]["hooks"], own["none"]["threads"]) == ("[]", "1")
    assert (own["fire"]["threads"], own["fire"]["clip_low"]) == ("1 | 7", "0.1 | 0.2")
    whole = list(tables.texts(report))
    assert [index for _, _, index in whole] == [0, 1]
    assert all("total: 6000 env_steps" in text for _, text, _ in whole)


def test_versions_that_differ_are_counted(tmp_path: Path):
    study = write_study(tmp_path, seeds=(1, 2))
    run = next(study.glob("cells/asterix/seed-1/fire-*/run.json"))
    run.write_text(json.dumps(json.loads(run.read_text()) | {"versions": {"rlplast": "9"}}))
    found, mixed = tables.versions(report_of(read([study])))
    own = {row["what"]: row["value"] for row in rows_of(found)}
    assert mixed == ["rlplast"]
    assert own["rlplast"] == "0.4.0 (5 of 6 runs); 9 (1 of 6 runs)"
    assert (own["git_revision"], own["host"]) == ("abc1234", "here")
