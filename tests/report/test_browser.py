"""The page of a report in a real browser: it draws, loads nothing else, hides, zooms, answers."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlplast.report.arms import looks
from rlplast.report.vega import WHOLE
from tests.report.browser import Browser, chromium

PROGRAM = chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs chromium or google-chrome")

CURVES, METRICS = "curve-asterix", "metrics-asterix-q"
ARMS = ("none", "fire", "full_reset")
COLOURS = [look.colour for look in looks(ARMS, "none")]
CHARTS = "document.querySelectorAll('figure.chart').length"
# How many elements of a colour take up room in a chart.
DRAWN = """
[...document.querySelectorAll('#chart-{0} .role-mark *')]
    .filter((own) => [own.getAttribute('stroke'), own.getAttribute('fill')].includes('{1}'))
    .filter((own) => own.getBoundingClientRect().width + own.getBoundingClientRect().height > 0)
    .length
"""
ROWS = """
[...document.querySelectorAll('tr[data-arm="{0}"]')]
    .filter((row) => row.getBoundingClientRect().height > 0).length
"""
VIEW = f"views.get('{CURVES}')"
LINE = f"document.querySelector('#chart-{CURVES} .mark-line path').getAttribute('d')"


@pytest.fixture
def address(plain: tuple[Path, str]) -> str:
    return (plain[0] / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path_factory.mktemp("profile")) as found:
        yield found


def draw_all(browser: Browser, address: str) -> Browser:
    """Load the page, unfold its sections, and wait until all of its charts are drawn."""
    browser.open("about:blank")  # a changed part after # alone would not load it again
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(address)
    browser.value("document.querySelectorAll('.section').forEach((own) => (own.open = true))")
    browser.wait_for(f"views.size === {CHARTS}")
    browser.value("window.scrollTo(0, 0)")
    return browser


@pytest.fixture
def opened(browser: Browser, address: str) -> Browser:
    return draw_all(browser, address)


def drawn(browser: Browser, chart: str = CURVES) -> list[int]:
    return [browser.value(DRAWN.format(chart, colour)) for colour in COLOURS]


def rows(browser: Browser) -> list[int]:
    return [browser.value(ROWS.format(arm)) for arm in range(len(ARMS))]


def domain(browser: Browser, axis: str) -> list[float]:
    return browser.value(f"{VIEW}.scale('{axis}').domain()")


def place(browser: Browser, x: float, y: float) -> tuple[float, float]:
    """Where in the window a point of the chart of curves is."""
    browser.value(f"document.getElementById('chart-{CURVES}').scrollIntoView({{block: 'center'}})")
    box = f"{VIEW}.container().querySelector('svg').getBoundingClientRect()"
    script = f"[{box}.x + {VIEW}.origin()[0] + {VIEW}.scale('x')({x}), "
    script += f"{box}.y + {VIEW}.origin()[1] + {VIEW}.scale('y')({y})]"
    left, top = browser.value(script)
    return left, top


def height(browser: Browser, arm: str, x: float) -> float:
    """The value of an arm's curve at x."""
    script = f"JSON.parse(document.getElementById('data').textContent).charts['{CURVES}']"
    found: list[dict[str, Any]] = browser.value(f"{script}.datasets.curves")
    (row,) = [own for own in found if own["arm"] == arm]
    return row["y"][row["x"].index(x)]


def choose(browser: Browser, selector: str, number: int) -> None:
    script = f"(() => {{const own = document.querySelector({selector!r}); own.selectedIndex = "
    script += f"{number}; own.dispatchEvent(new Event('change', {{bubbles: true}}))}})()"
    browser.value(script)


def test_page_draws_every_chart_without_complaint_and_asks_for_nothing_else(
    opened: Browser, address: str, tmp_path: Path
):
    boxes = opened.value(
        "[...document.querySelectorAll('figure.chart svg')]"
        ".map((own) => own.getBoundingClientRect()).map((box) => [box.width, box.height])"
    )
    assert len(boxes) == opened.value(CHARTS) == 4
    assert all(width > 200 and height > 50 for width, height in boxes)
    assert opened.value("document.title") == "demo"
    assert opened.complaints == []
    assert [own for own in opened.requests if not own.startswith("data:image/svg")] == [address]
    page = tmp_path / "bad.html"  # a worse page's would be seen
    page.write_text("<img src='missing.png'><script>undefined_name()</script>")
    opened.open(page.as_uri())
    assert any("undefined_name" in complaint for complaint in opened.complaints)
    assert any(request.endswith("missing.png") for request in opened.requests)


def test_boxes_hide_arms_everywhere_and_the_address_keeps_it(opened: Browser, address: str):
    charts = [CURVES, "score-asterix", METRICS]
    before, lines, highest = (
        [drawn(opened, own) for own in charts],
        rows(opened),
        domain(opened, "y"),
    )
    assert all(map(all, before)) and all(lines)
    opened.click("#show-2")  # the arm with the highest scores
    for chart, counts in zip(charts, before, strict=True):
        opened.wait_for(f"{DRAWN.format(chart, COLOURS[2])} === 0")
        assert drawn(opened, chart) == [*counts[:2], 0]
    assert rows(opened) == [*lines[:2], 0]
    assert height(opened, "fire", 6000) <= domain(opened, "y")[1] < highest[1]
    kept = opened.value("location.href")
    assert kept == f"{address}#hide=2"
    draw_all(opened, kept)
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[2])} === 0")
    assert opened.value("document.getElementById('show-2').checked") is False
    opened.click("#show-none")
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[0])} === 0")
    assert (drawn(opened), rows(opened)) == ([0, 0, 0], [0, 0, 0])
    opened.click("#show-all")
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[2])} > 0")
    assert (drawn(opened), rows(opened), domain(opened, "y")) == (before[0], lines, highest)
    opened.value("document.getElementById('show-1').focus()")
    opened.press(" ", 32)
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[1])} === 0")
    assert opened.complaints == []


def test_a_point_under_the_mouse_says_its_arm_value_and_interval(opened: Browser):
    value = height(opened, "fire", 5000)
    x, y = place(opened, 5000, value)
    opened.move(x - 40, y - 40)
    opened.move(x, y)
    tip = "document.querySelector('#vg-tooltip-element.visible')"
    opened.wait_for(f"{tip} !== null")
    text = opened.value(f"{tip}.innerText")
    assert all(own in text for own in ("fire", "5,000", f"{value:.4g}", "interval from"))
    box = "document.querySelector('label[data-points=\"1\"]').getBoundingClientRect()"
    opened.move(*opened.value(f"[{box}.x + 9, {box}.y + 9]"))  # its box: the others are faint
    lines = f"[...document.querySelectorAll('#chart-{CURVES} .mark-line path')]"
    opened.wait_for(f"{lines}.filter((own) => own.getAttribute('opacity') === '0.12').length === 2")
    opened.move(5, 5)
    opened.wait_for(f"{VIEW}.signal('focus') === null")


def test_curves_are_drawn_over_other_axes_smoothed_and_by_seed(opened: Browser):
    before, path, whole = drawn(opened), opened.value(LINE), domain(opened, "x")
    names = opened.value("[...document.querySelectorAll('#axis option')].map((own) => own.value)")
    assert names == ["", "updates", "seconds"]
    title = f"document.querySelector('#chart-{CURVES} .role-axis-title text').textContent"
    for number, share in ((1, 0.5), (2, 0.01), (0, 1.0)):  # of env steps
        choose(opened, "#axis", number)
        opened.wait_for(f"Math.abs({VIEW}.scale('x').domain()[1] - {whole[1] * share}) < 1e-6")
        opened.wait_for(f"{title} === '{names[number] or 'env steps'}'")
        heights = [re.findall(r",([\d.]+)", own) for own in (path, opened.value(LINE))]
        assert heights[0] == heights[1] and drawn(opened) == before
    opened.click("#smooth")
    opened.wait_for(f"{LINE} !== {path!r}")
    ys = [height(opened, "none", x) for x in (2000, 2500, 3000)]  # its neighbours, 1 of 12 points
    found = opened.value(f"{VIEW}.data('curves').find((own) => own.arm === 'none').y[4]")
    assert found == pytest.approx(sum(ys) / 3)
    opened.click("#smooth")
    opened.wait_for(f"{LINE} === {path!r}")
    opened.click("#show-seeds")
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[1])} > {before[1]}")
    assert drawn(opened) == [count + 5 for count in before]
    opened.click("#show-seeds")
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[1])} === {before[1]}")
    assert opened.complaints == []


def test_a_chosen_layer_stays_on_a_phone_whose_page_is_no_wider(opened: Browser):
    metrics, choice = METRICS, f"document.querySelector('#chart-{METRICS} select')"
    assert opened.value(f"[...{choice}.options].map((own) => own.text)") == [WHOLE, "fc1", WHOLE]
    choose(opened, f"#chart-{metrics} select", 1)
    opened.wait_for(f"views.get('{metrics}').signal('layer') === 'fc1'")
    opened.value(f"views.get('{metrics}').__old = 1")
    size = {"width": 420, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    opened.ask("Emulation.setDeviceMetricsOverride", **size)
    try:
        opened.wait_for(f"!views.get('{metrics}').__old && {choice}?.selectedIndex === 1")
        assert opened.value(f"views.get('{metrics}').signal('layer')") == "fc1"
        assert opened.value("document.documentElement.scrollWidth") == 420
        svgs = "[...document.querySelectorAll('figure.chart svg')]"
        opened.wait_for(f"Math.max(...{svgs}.map((own) => own.clientWidth)) <= 420")
    finally:
        opened.ask("Emulation.clearDeviceMetricsOverride")
    assert opened.complaints == []


def test_sections_unfold_by_their_links_and_on_paper(browser: Browser, address: str):
    browser.open("about:blank")
    browser.open(address)
    closed = "document.querySelectorAll('.section:not([open])').length"
    assert browser.value(closed) > 3
    browser.click("nav a[href='#profiles']")
    browser.wait_for("views.has('profile-asterix')")
    browser.value("dispatchEvent(new Event('beforeprint'))")
    assert browser.value(closed) == 0
    browser.ask("Emulation.setEmulatedMedia", media="print")
    controls = "[...document.querySelectorAll('button, nav, #show-seeds, #axis')]"
    hidden = f"{controls}.every((own) => !own.offsetParent)"
    assert browser.value(hidden) is True
    browser.ask("Emulation.setEmulatedMedia", media="")


def test_without_scripts_pictures_stand_in_the_place_of_charts(browser: Browser, address: str):
    browser.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(address)
        root = browser.ask("DOM.getDocument")["root"]["nodeId"]
        found = browser.ask("DOM.querySelectorAll", nodeId=root, selector="#curves img")["nodeIds"]
        assert len(found) == 2
        for node in found:
            box = browser.ask("DOM.getBoxModel", nodeId=node)["model"]
            assert box["width"] > 300 and box["height"] > 100
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)
