"""The picture of a run: which panels, whose colour, and what the marks say."""

from pathlib import Path
from typing import Any

import pytest

from rlplast.report.plot import draw_run, plot_run
from tests.report.drawn import svg
from tests.report.runs import receipt_row

NORM, DISTANCE = "metric/weight_norm", "metric/weight_difference"
DQN = [
    {"updates": step, "env_steps": step, "train/return": 1.0, "eval/return_mean": 2.0}
    | {"train/loss": 0.5, "train/q": 3.0, f"{NORM}/q": 5.0, f"{DISTANCE}/q": 2.0}
    | {f"{NORM}/q/fc1.weight": 3.0, f"{NORM}/q/fc1.bias": 4.0}
    for step in (10, 20)
]
CLASSIFIER = {"updates": 5, "epochs": 1, "phase": 0, "train/loss": 1.0, "train/accuracy": 0.5}
CLASSIFIER |= {"eval/accuracy": 0.4, "eval/loss": 1.5, f"{NORM}/model": 2.0}
GPT = {"updates": 5, "tokens": 50, "train/loss": 1.0, "eval/b/loss": 3.0, "eval/loss": 2.5}
GPT |= {"eval/a/loss": 2.0}


def sac_rows(*temperatures: float) -> list[dict]:
    rows = []
    for number, temperature in enumerate(temperatures or (1.0, 0.5), start=1):
        row = {"updates": 10 * number, "env_steps": 20 * number, "eval/return_mean": 2.0}
        row |= {"train/loss": 0.5, "train/temperature": temperature, "train/entropy": -1.0}
        for network, tensors in (("actor", 2), ("critic", 2), ("temperature", 1)):
            for metric in (NORM, DISTANCE):
                row[f"{metric}/{network}"] = 7.0
                row |= {f"{metric}/{network}/{i}": 1.0 for i in range(tensors)}
        row |= {"metric/awake_fraction/critic": 0.5, "metric/awake_fraction/critic/fc1": 0.5}
        rows.append(row)
    return rows


def values(spec: dict[str, Any]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Title of a panel → label of a line → its points."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for own in spec["vconcat"]:
        title = own["layer"][0]["encoding"]["y"]["title"]
        lines = found.setdefault(title, {})
        for row in spec["datasets"][own.get("data", own["layer"][0].get("data"))["name"]]:
            lines.setdefault(row["label"], []).append((row["x"], row["y"]))
    return found


SAC = ["return", "loss", "temperature α", "policy entropy", "weight norm", "distance from start"]
NOTHING = [{"updates": 5, "env_steps": 5, "train/loss": None}]


@pytest.mark.parametrize(
    ("rows", "titles"),
    [
        (DQN, ["return", "loss", "weight norm", "distance from start"]),
        (sac_rows(), [*SAC, "awake fraction"]),
        ([CLASSIFIER], ["accuracy", "loss", "weight norm"]),
        *(([GPT], ["loss"]), (NOTHING, ["return"]), ([], ["return"])),
    ],
    ids=["dqn", "sac", "classifier", "gpt", "nothing measured", "no rows"],
)
def test_what_was_measured_has_a_panel(rows: list[dict], titles: list[str]):
    spec = draw_run(rows, [receipt_row("fire", 8)])
    shown = [own["layer"][0]["encoding"]["y"]["title"] for own in spec["vconcat"]]
    assert shown == titles
    assert "<svg" in svg(spec)


def test_lines_hold_what_was_measured_and_have_colours_of_their_own():
    spec = draw_run([GPT], [{"method": "fire", "network": "q", "clock": GPT, "norm_before": 1.0}])
    lines = {"training": 1.0, "evaluation": 2.5, "a, held out": 2.0, "b, held out": 3.0}
    assert values(spec)["loss"] == {label: [(5, y)] for label, y in lines.items()}
    encoding = spec["vconcat"][0]["layer"][0]["encoding"]
    assert len(set(encoding["color"]["scale"]["range"])) == 4
    assert encoding["x"]["title"] == "updates"  # no env_steps there
    assert set(values(draw_run(sac_rows(), [receipt_row("fire", 8)]))["awake fraction"]) == {
        "critic"
    }  # no layers


def test_marks_name_methods_and_networks_once_each_on_one_axis_for_all_panels():
    fired = (("fire", 20, "actor"), ("fire", 20, "critic"), ("full_reset", 20, "temperature"))
    receipts = [receipt_row(*own) for own in (*fired, ("swr", 30, "critic"), ("swr", 90, "critic"))]
    spec = draw_run(sac_rows(), [*receipts, receipt_row("swr", 200, "actor", norm=None)])
    (name,) = {own["layer"][1]["data"]["name"] for own in spec["vconcat"]}
    assert [(row["fired"], row["x"]) for row in spec["datasets"][name]] == [
        ("fire: actor, critic; full_reset: temperature", 20),
        ("swr: critic", 30),
        ("swr: critic", 90),
    ]
    for own in spec["vconcat"]:
        assert own["layer"][0]["encoding"]["x"]["scale"]["domain"] == [20, 90]


def test_plot_run_reads_a_folder_and_leaves_one_file(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"updates": 1, "train/loss": 2.0}\n')
    (tmp_path / "receipts.jsonl").write_text("")
    before = set(tmp_path.iterdir())
    out = plot_run(tmp_path)
    assert out.read_bytes().startswith(b"\x89PNG")
    assert set(tmp_path.iterdir()) - before == {out}
