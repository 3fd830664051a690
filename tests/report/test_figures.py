"""Pictures of several arms: what is drawn, whose it is, what covers what, equal bytes."""

import io
import re
from functools import cache
from itertools import combinations
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from rlplast.report.figure_rows import Bar, Panel, Point, draw_rows
from rlplast.report.figures import Curve, draw_curves, draw_panels
from rlplast.report.looks import BASELINE, INK, Look, inline, looks, png_of, style, svg_of

NAMES = ("none", "fire", "full_reset")
MANY = tuple(f"an arm with quite a long name {number}" for number in range(12))
XS = np.arange(0.0, 6000.0, 500.0)
every_kind = pytest.mark.parametrize("kind", ["curves", "panels", "points", "bars"])


def curves(arms: int, points: np.ndarray = XS) -> dict[int, Curve]:
    return {
        arm: Curve(points, points * (arm + 1), points * (arm + 1) - 50, points * (arm + 1) + 50)
        for arm in range(arms)
    }


def points(arms: int) -> dict[int, Point]:
    return {arm: Point(arm, arm - 0.5, arm + 1.0, (arm - 1.0, arm + 2.0)) for arm in range(arms)}


@cache
def all_pictures(names: tuple[str, ...]) -> dict[str, Figure]:
    """One picture of each kind, of all arms."""
    arms, n = looks(names, names[0]), len(names)
    fired = {arm: [1000.0 * arm] for arm in range(1, n)}
    panels = [Panel("final", "score", points(n), 0.0), Panel("area", "score", points(n))]
    bars = [Panel("task", "seconds", {arm: Bar(3.0, 2.0) for arm in range(n)}, axis="bars")]
    with style():
        return {
            "curves": draw_curves("curves", arms, curves(n), ("steps", "score"), [3000], fired),
            "panels": draw_panels("panels", arms, {"a": curves(n), "b": curves(n)}, "steps", []),
            "points": draw_rows("points", arms, panels),
            "bars": draw_rows("bars", arms, bars),
        }


def of_arm(figure: Figure, arm: int) -> list[Any]:
    return figure.findobj(lambda artist: str(artist.get_gid()).startswith(f"arm-{arm}-"))


def lines(figure: Figure, arm: int) -> list[tuple[list[float], list[float]]]:
    found = [own for own in of_arm(figure, arm) if hasattr(own, "get_xdata")]
    return [(list(own.get_xdata()), list(own.get_ydata())) for own in found]


def rendered(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def shown_texts(figure: Figure) -> list[Text]:
    """All texts but those of ticks beyond an axis's ends, which matplotlib keeps and hides."""
    hidden = [
        tick.label1
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        if not axes.get_visible()
        or not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    ]
    texts = [artist for artist in figure.findobj() if isinstance(artist, Text)]
    return [t for t in texts if t.get_text() and t.get_visible() and t not in hidden]


def test_arms_differ_in_colour_and_line_or_marker_and_the_baseline_is_grey():
    arms = looks(MANY, MANY[3])
    assert arms[3].colour == BASELINE
    assert [look.index for look in arms if look.colour == BASELINE] == [3]
    assert len({(look.colour, look.dash) for look in arms}) == len(MANY)
    assert len({(look.colour, look.marker) for look in arms}) == len(MANY)
    assert BASELINE not in [look.colour for look in looks(MANY, None)]
    colours = [
        {look.name: look.colour for look in looks(names, "none")}
        for names in (("none", "a", "b"), ("a", "b", "none"))
    ]
    assert colours[0] == colours[1]  # wherever the baseline stands


def test_long_and_unprintable_names_are_shortened_in_pictures_only():
    look = Look(0, "x" * 100, "#000000", "o", "-")
    assert look.short == "x" * 25 + "…"
    assert look.name == "x" * 100
    assert Look(0, "a\x00b\nc", "#000000", "o", "-").short == "a\ufffdb\ufffdc"


@every_kind
def test_every_arm_has_ids_of_its_own_that_are_unique(kind: str):
    figure = all_pictures(NAMES)[kind]
    gids = [
        gid
        for artist in figure.findobj()
        if (gid := artist.get_gid()) is not None and gid.startswith("arm-")
    ]
    assert len(gids) == len(set(gids))
    assert {gid.split("-")[1] for gid in gids} == {"0", "1", "2"}
    assert all(gid.split("-")[2] == kind for gid in gids)


@every_kind
def test_what_has_an_arms_colour_has_its_id(kind: str):
    figure = all_pictures(NAMES)[kind]
    svg = svg_of(figure)
    outside = re.sub(r'<g id="arm-\d.*?\n( *)</g>(?=\n)', "", svg, flags=re.DOTALL)
    for look in looks(NAMES, NAMES[0]):
        assert look.colour in svg
        assert look.colour not in re.sub(r"<defs>.*?</defs>", "", outside, flags=re.DOTALL)


def test_curves_show_the_numbers_given():
    figure = all_pictures(NAMES)["curves"]
    assert (list(XS), list(XS * 3)) in lines(figure, 2)
    (band,) = [own for own in of_arm(figure, 2) if isinstance(own, PolyCollection)]
    corners = {(x, y) for x, y in np.asarray(band.get_paths()[0].vertices).tolist()}
    assert {(x, 3 * x - 50) for x in XS} | {(x, 3 * x + 50) for x in XS} <= corners
    assert ([2000.0], [1]) in lines(figure, 2)  # its firing, in a row of its own


@pytest.mark.parametrize("side", [None, np.full(len(XS), np.nan)], ids=["none", "nan"])
def test_one_seed_has_a_curve_and_no_band(side: np.ndarray | None):
    with style():
        one = {0: Curve(XS, XS, side, side)}
        svg = svg_of(draw_curves("c", looks(("none",), "none"), one, ("x", "y"), [], {}))
    assert not re.findall(r"<path [^>]*fill-opacity: 0.18", svg)


@pytest.mark.parametrize(("firings", "axes"), [({}, 1), ({1: []}, 1), ({1: [5.0]}, 2)])
def test_hooks_have_no_axis_where_none_fired(firings: dict[int, list[float]], axes: int):
    with style():
        figure = draw_curves("c", looks(NAMES, None), curves(3), ("x", "y"), [], firings)
    assert len(figure.axes) == axes


def test_points_show_value_interval_and_seeds():
    found = lines(all_pictures(NAMES)["points"], 1)
    for expected in ([1], [0.5, 2.0], [0.0, 3.0]):
        assert expected in [xs for xs, _ in found]
    assert len(found) == 6  # in both panels


def test_point_without_interval_has_no_line():
    alone = {0: Point(5.0, float("nan"), float("nan"))}
    with style():
        svg = svg_of(draw_rows("p", looks(("none",), None), [Panel("a", "b", alone)]))
    drawn = re.findall(r'<g id="arm-0-p-\d">(.*?)\n {3}</g>', svg, flags=re.DOTALL)
    assert sum("stroke-width: 2.2" in own for own in drawn if "<path d" in own) == 0


def test_arm_without_a_number_has_no_row():
    with style():
        only = {2: Point(1.0)}
        figure = draw_rows("p", looks(NAMES, "none"), [Panel("a", "b", only)])
    texts = {text.get_text() for text in figure.findobj(Text)}
    assert "full_reset" in texts
    assert not {"none", "fire"} & texts


def test_shares_have_an_axis_from_0_to_1_and_times_begin_at_0():
    near, times = {0: Point(0.5, 0.48, 0.52)}, {0: Point(400.0, seeds=(300.0, 500.0))}
    with style():
        panels = [Panel("p", "p", near, 0.5, "share"), Panel("t", "t", times, axis="time")]
        share, time = draw_rows("p", looks(("a",), None), panels).axes
    low, high = share.get_xlim()
    assert low < 0 and high > 1
    low, high = time.get_xlim()
    assert -50 < low < 0 and high > 500


def test_bars_begin_at_0_and_their_shared_part_comes_first():
    figure = all_pictures(NAMES)["bars"]
    (axes,) = figure.axes
    assert axes.get_xlim()[0] == 0
    spans = [(p.get_x(), p.get_x() + p.get_width()) for p in of_arm(figure, 1) if p in axes.patches]
    assert spans == [(0, 2), (2, 5)]


@every_kind
def test_no_two_texts_of_twelve_arms_overlap_and_none_is_cut_off(kind: str):
    figure = all_pictures(MANY)[kind]
    renderer = rendered(figure)
    drawn = [(t.get_text(), t.get_window_extent(renderer)) for t in shown_texts(figure)]
    for (one, first), (other, second) in combinations(drawn, 2):
        assert not first.padded(-1).overlaps(second.padded(-1)), (one, other)
    for text, box in drawn:
        assert figure.bbox.padded(1).contains(box.x0, box.y0), text
        assert figure.bbox.padded(1).contains(box.x1, box.y1), text


def test_files_repeat_byte_for_byte_whatever_the_users_options_are():
    figure = all_pictures(NAMES)["curves"]
    svg, png = svg_of(figure), png_of(figure)
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "text.parse_math": True}):
        again = all_pictures.__wrapped__(NAMES)["curves"]
        with style():
            assert (svg_of(again), png_of(again)) == (svg_of(figure), png)
        assert matplotlib.rcParams["font.size"] == 30
    assert "date" not in svg.lower()
    assert matplotlib.__version__ not in svg
    assert matplotlib.__version__.encode() not in png


def test_rounding_moves_nothing_visibly_and_changes_no_text():
    with style():
        figure = Figure(figsize=(4, 3))
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], gid="arm-0-x-0")
        axes.text(0.5, 0.5, '0.123456 d="0.123456"')
        exact = io.StringIO()
        figure.savefig(exact, format="svg")
        short = svg_of(figure)
    assert '0.123456 d="0.123456"' in short
    path = re.compile(r'<g id="arm-0-x-0">\s*<path d="([^"]*)"')
    ours, theirs = (
        [float(n) for n in re.findall(r"-?[\d.]+", path.search(text)[1])]  # type: ignore[index]
        for text in (short, exact.getvalue())
    )
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) <= 0.005
    assert ours != theirs


def test_inline_pictures_share_no_id_and_refer_only_to_their_own():
    figures = all_pictures(NAMES)
    with style():
        parts = {name: inline(svg_of(figure), name, name) for name, figure in figures.items()}
    every = [found for part in parts.values() for found in re.findall(r'\bid="([^"]*)"', part)]
    assert len(every) == len(set(every))
    for name, part in parts.items():
        own = set(re.findall(r'\bid="([^"]*)"', part))
        used = re.findall(r'url\(#([^)]*)\)|href="#([^"]*)"', part)
        assert used
        assert {one or other for one, other in used} <= own
        assert part.startswith("<svg ") and f'<title id="{name}-title">{name}</title>' in part


def test_inline_picture_takes_the_pages_colour_and_font():
    with style():
        part = inline(svg_of(all_pictures(NAMES)["curves"]), "c", "t")
    assert "currentColor" in part
    assert INK not in part
    assert "font-family" not in part
    assert "<style" not in part
