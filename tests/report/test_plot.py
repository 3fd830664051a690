"""The picture of a run: which panels, whose colour, what the marks say, and what covers what."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlplast.report.plot import draw_run, plot_run
from tests.marks import slow
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


def panels(figure: Figure) -> dict[str, Axes]:
    return {axes.get_ylabel(): axes for axes in figure.axes}


def looks(axes: Axes) -> dict[str, tuple[str, str]]:
    return {
        str(line.get_label()): (str(line.get_color()), str(line.get_linestyle()))
        for line in axes.get_lines()
    }


SAC = ["return", "critic loss", "temperature α", "policy entropy", "weight norm", "awake fraction"]
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
    found = panels(draw_run(sac_rows(), []))
    assert found["temperature α"].get_yscale() == "log"
    assert np.asarray(found["temperature α"].get_lines()[0].get_ydata()).tolist() == [1.0, 0.5]
    assert list(looks(found["awake fraction"])) == ["critic"]


def test_clock_is_updates_where_there_are_no_env_steps():
    rows = [{"updates": 5, "train/loss": 1.0}]
    mark = {"method": "fire", "network": "net", "clock": {"updates": 3}, "norm_before": 1.0}
    figure = draw_run(rows, [mark])
    assert np.asarray(panels(figure)["loss"].get_lines()[0].get_xdata()).tolist() == [5]
    assert figure.axes[-1].get_xlabel() == "updates"


def test_norm_and_distance_share_their_networks_colour_and_a_scalar_network_has_none():
    lines = looks(panels(draw_run(sac_rows(), []))["weight norm"])
    assert len(lines) == 4
    colours: dict[str, str] = {}
    for label, (colour, style) in lines.items():
        assert style == ("--" if "from start" in label else "-")
        assert colours.setdefault(label.partition(":")[0], colour) == colour
    assert colours.keys() == {"actor", "critic"}
    assert len(set(colours.values())) == 2
    rows = [{k: v for k, v in row.items() if "weight_norm" not in k} for row in sac_rows()]
    assert len(looks(panels(draw_run(rows, []))["weight norm"])) == 2


def test_colours_do_not_depend_on_what_came_first():
    late = [{k: v for k, v in DQN[0].items() if k != "train/return"}, DQN[1]]
    for title, axes in panels(draw_run(DQN, [])).items():
        assert looks(axes) == looks(panels(draw_run(late, []))[title])


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
    figure = draw_run(sac_rows(), receipts)
    assert [text.get_text() for text in figure.axes[0].texts] == [
        "fire: actor, critic; full_reset: temperature",
        "swr: critic (2 times)",
    ]
    for axes in figure.axes:
        dotted = [line for line in axes.get_lines() if line.get_linestyle() == ":"]
        assert [np.asarray(line.get_xdata()).tolist() for line in dotted] == [
            [20, 20],
            [30, 30],
            [40, 40],
        ]


@pytest.mark.parametrize("rows", [DQN, sac_rows()], ids=["dqn", "sac"])
def test_legends_and_marks_cover_no_panel_and_not_each_other(rows: list[dict]):
    receipts = [receipt_row("fire", at) for at in (10, 11, 19)]
    receipts += [receipt_row("head_reset", 12), receipt_row("shrink_perturb", 20)]
    figure = draw_run(rows, receipts)
    figure.draw_without_rendering()
    legends = [axes.get_legend() for axes in figure.axes]
    outside = [legend for legend in legends if legend is not None] + figure.axes[0].texts
    boxes = [artist.get_window_extent() for artist in outside]
    assert len(boxes) == len([own for own in legends if own]) + 3
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
        assert not any(box.overlaps(other) for other in boxes[:number])
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
    panel = figure.axes[0].get_window_extent()
    for text in figure.axes[0].texts:  # one that hung over the edge would make all panels narrower
        assert panel.x0 <= text.get_window_extent().x0
        assert text.get_window_extent().x1 <= panel.x1


@pytest.mark.parametrize(
    "temperatures", [(1.0, 0.97), slow((1.0, 0.2)), (1.0, 1e-4), slow((3e-4, 1e-4))]
)
def test_temperature_axis_names_values_of_both_its_halves(temperatures: tuple[float, ...]):
    figure = draw_run(sac_rows(temperatures), [])
    figure.draw_without_rendering()
    axes = panels(figure)["temperature α"]
    low, high = axes.get_ylim()
    shown = [
        tick.label1.get_text()
        for tick in axes.yaxis.get_major_ticks()
        if low <= tick.get_loc() <= high
    ]
    assert len(set(shown)) == len(shown) <= 14
    values = [float(text) for text in shown]
    assert min(values) < (low * high) ** 0.5 < max(values)


def test_constant_temperature_is_drawn():
    draw_run(sac_rows((1.0, 1.0)), []).draw_without_rendering()


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_plot_run_reads_a_folder_and_leaves_one_file(tmp_path: Path, name: str, start: bytes):
    (tmp_path / "metrics.jsonl").write_text('{"updates": 1, "train/loss": 2.0}\n')
    (tmp_path / "receipts.jsonl").write_text("")
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / name
    assert plot_run(tmp_path, out) == out
    assert out.read_bytes().startswith(start)
    assert list(out.parent.iterdir()) == [out]


def test_a_classifier_shows_accuracies_and_losses_of_both():
    drawn = panels(draw_run([CLASSIFIER], []))
    assert [list(line.get_ydata()) for line in drawn["loss"].get_lines()] == [[1.0], [1.5]]
    assert [list(line.get_ydata()) for line in drawn["accuracy"].get_lines()] == [[0.5], [0.4]]


def test_a_gpt_shows_the_loss_of_every_corpus_in_a_colour_of_its_own():
    row = {"updates": 5, "tokens": 50, "phase": 0, "train/loss": 1.0}
    row |= {"eval/b/loss": 3.0, "eval/a/loss": 2.0, "eval/loss": 2.5}
    drawn = panels(draw_run([row], []))
    assert list(drawn) == ["loss"]
    lines = drawn["loss"].get_lines()
    assert [str(line.get_label()) for line in lines] == ["training", "a, held out", "b, held out"]
    assert [list(line.get_ydata()) for line in lines] == [[1.0], [2.0], [3.0]]
    assert len({str(line.get_color()) for line in lines}) == 3
