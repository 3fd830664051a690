"""The picture of a run: which panels, whose colour, and what the marks say."""

import re
from pathlib import Path
from typing import Any

import pytest

from rlplast.report.plot import draw_run, plot_run
from tests.marks import slow
from tests.report.drawn import svg
from tests.report.runs import receipt_row

DQN = [
    {
        "updates": step,
        "env_steps": step,
        "train/return": 1.0,
        "eval/return_mean": 2.0,
        "train/loss": 0.5,
        "train/q": 3.0,
        "metric/weight_norm/q": 5.0,
        "metric/weight_norm/q/fc1.weight": 3.0,
        "metric/weight_norm/q/fc1.bias": 4.0,
        "metric/weight_difference/q": 2.0,
    }
    for step in (10, 20)
]


def sac_rows(temperatures: tuple[float, ...] = (1.0, 0.5)) -> list[dict]:
    rows = []
    for number, temperature in enumerate(temperatures, start=1):
        row = {"updates": 10 * number, "env_steps": 20 * number}
        row |= {"eval/return_mean": 2.0, "train/loss": 0.5, "train/loss_actor": -3.0}
        row |= {"train/temperature": temperature, "train/entropy": -1.0}
        for network, tensors in (("actor", 2), ("critic", 2), ("temperature", 1)):
            for metric in ("weight_norm", "weight_difference"):
                row[f"metric/{metric}/{network}"] = 7.0
                row |= {f"metric/{metric}/{network}/{i}": 1.0 for i in range(tensors)}
        row |= {"metric/awake_fraction/critic": 0.5, "metric/awake_fraction/critic/fc1": 0.5}
        rows.append(row)
    return rows


def panels(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Title → its lines' layer."""
    return {own["layer"][0]["encoding"]["y"]["title"]: own["layer"][0] for own in spec["vconcat"]}


def looks(layer: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Label of a line → its colour, and whether it is dashed."""
    colour, dash = (layer["encoding"][key]["scale"] for key in ("color", "strokeDash"))
    pairs = zip(colour["range"], [own != [1, 0] for own in dash["range"]], strict=True)
    assert colour["domain"] == dash["domain"]
    return dict(zip(colour["domain"], pairs, strict=True))


def values(spec: dict[str, Any], title: str) -> dict[str, list[tuple[float, float]]]:
    """Label of a line of a panel → its points."""
    found: dict[str, list[tuple[float, float]]] = {}
    (own,) = [p for p in spec["vconcat"] if p["layer"][0]["encoding"]["y"]["title"] == title]
    data = own.get("data") or own["layer"][0].get("data") or spec["data"]
    for row in spec["datasets"][data["name"]]:
        found.setdefault(row["label"], []).append((row["x"], row["y"]))
    return found


def marks(spec: dict[str, Any]) -> dict[str, list[int]]:
    """What fired → when; the same in every panel."""
    names = {own["layer"][1]["data"]["name"] for own in spec["vconcat"]}
    (name,) = names
    found: dict[str, list[int]] = {}
    for row in spec["datasets"][name]:
        found.setdefault(row["fired"], []).append(row["x"])
    return found


SAC = ["return", "loss", "temperature α", "policy entropy", "weight norm", "awake fraction"]
CLASSIFIER = {"updates": 5, "epochs": 1, "phase": 0, "train/loss": 1.0, "train/accuracy": 0.5}
CLASSIFIER |= {"eval/accuracy": 0.4, "eval/loss": 1.5, "metric/weight_norm/model": 2.0}


@pytest.mark.parametrize(
    ("rows", "titles"),
    [
        (DQN, ["return", "loss", "weight norm"]),
        (sac_rows(), SAC),
        ([CLASSIFIER], ["accuracy", "loss", "weight norm"]),
        ([{"updates": 5, "env_steps": 5, "train/loss": None}], ["return"]),
        ([], ["return"]),
    ],
    ids=["dqn", "sac", "classifier", "nothing measured", "no rows"],
)
def test_what_was_measured_has_a_panel(rows: list[dict], titles: list[str]):
    assert list(panels(draw_run(rows, []))) == titles


def test_temperature_is_on_a_log_axis_and_tensors_have_no_line():
    spec = draw_run(sac_rows((1.0, 0.1)), [])
    found = panels(spec)
    assert found["temperature α"]["encoding"]["y"]["scale"]["type"] == "log"
    assert [y for _, y in values(spec, "temperature α")[""]] == [1.0, 0.1]
    assert list(looks(found["awake fraction"])) == ["critic"]


def test_clock_is_updates_where_there_are_no_env_steps():
    rows = [{"updates": 5, "train/loss": 1.0}]
    mark = {"method": "fire", "network": "net", "clock": {"updates": 3}, "norm_before": 1.0}
    spec = draw_run(rows, [mark])
    assert values(spec, "loss") == {"training": [(5, 1.0)]}
    assert panels(spec)["loss"]["encoding"]["x"]["title"] == "updates"


def test_norm_and_distance_share_their_networks_colour_and_a_scalar_network_has_none():
    lines = looks(panels(draw_run(sac_rows(), []))["weight norm"])
    assert len(lines) == 4
    colours: dict[str, str] = {}
    for label, (colour, dashed) in lines.items():
        assert dashed == ("from start" in label)
        assert colours.setdefault(label.partition(",")[0], colour) == colour
    assert colours.keys() == {"actor", "critic"}
    assert "�" not in svg(draw_run(sac_rows(), []))
    assert len(set(colours.values())) == 2
    rows = [{k: v for k, v in row.items() if "weight_norm" not in k} for row in sac_rows()]
    assert len(looks(panels(draw_run(rows, []))["weight norm"])) == 2


def test_colours_do_not_depend_on_what_came_first():
    late = [{k: v for k, v in DQN[0].items() if k != "train/return"}, DQN[1]]
    for title, layer in panels(draw_run(DQN, [])).items():
        assert looks(layer) == looks(panels(draw_run(late, []))[title])


def test_networks_of_unknown_names_get_different_colours():
    rows = [{"updates": 1, **{f"metric/weight_norm/net{i}": 1.0 for i in range(3)}}]
    lines = looks(panels(draw_run(rows, []))["weight norm"])
    assert len({colour for colour, _ in lines.values()}) == 3


def test_marks_name_methods_and_networks_once_each():
    receipts = [
        receipt_row("fire", 20, "actor"),
        receipt_row("fire", 20, "critic"),
        receipt_row("full_reset", 20, "temperature"),
        receipt_row("swr", 30, "critic"),
        receipt_row("swr", 40, "critic"),
        receipt_row("swr", 40, "actor", norm=None),
    ]
    assert marks(draw_run(sac_rows(), receipts)) == {
        "fire: actor, critic; full_reset: temperature": [20],
        "swr: critic (2 times)": [30, 40],
    }


def test_all_panels_have_one_clock_axis():
    spec = draw_run(sac_rows(), [receipt_row("fire", 90)])
    domains = [layer["encoding"]["x"]["scale"]["domain"] for layer in panels(spec).values()]
    assert domains == [[20, 90]] * len(domains)


@pytest.mark.parametrize(
    "temperatures", [(1.0, 0.97), slow((1.0, 0.2)), (1.0, 1e-4), slow((3e-4, 1e-4)), (1.0, 1.0)]
)
def test_temperature_axis_names_values(temperatures: tuple[float, ...]):
    whole = draw_run(sac_rows(temperatures), [])
    alone = [own for own in whole["vconcat"] if "temperature" in str(own["layer"][0]["encoding"])]
    shown = re.findall(r">([\d.]+)</text>", svg(whole | {"vconcat": alone}))
    heights = {float(text) for text in shown if float(text) < 10}  # the others are env steps
    assert min(temperatures) * 0.9 <= max(heights) <= max(temperatures) * 4


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<svg")])
def test_plot_run_reads_a_folder_and_leaves_one_file(tmp_path: Path, name: str, start: bytes):
    (tmp_path / "metrics.jsonl").write_text('{"updates": 1, "train/loss": 2.0}\n')
    (tmp_path / "receipts.jsonl").write_text("")
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / name
    assert plot_run(tmp_path, out) == out
    assert out.read_bytes().startswith(start)
    assert list(out.parent.iterdir()) == [out]


def test_a_classifier_shows_accuracies_and_losses_of_both():
    spec = draw_run([CLASSIFIER], [])
    assert values(spec, "loss") == {"training": [(5, 1.0)], "evaluation": [(5, 1.5)]}
    assert values(spec, "accuracy") == {"training": [(5, 0.5)], "evaluation": [(5, 0.4)]}


def test_a_gpt_shows_the_loss_of_every_corpus_in_a_colour_of_its_own():
    row = {"updates": 5, "tokens": 50, "phase": 0, "train/loss": 1.0}
    row |= {"eval/b/loss": 3.0, "eval/a/loss": 2.0, "eval/loss": 2.5}
    spec = draw_run([row], [])
    assert list(panels(spec)) == ["loss"]
    assert values(spec, "loss") == {
        "training": [(5, 1.0)],
        "evaluation": [(5, 2.5)],
        "a, held out": [(5, 2.0)],
        "b, held out": [(5, 3.0)],
    }
    assert len({colour for colour, _ in looks(panels(spec)["loss"]).values()}) == 4
