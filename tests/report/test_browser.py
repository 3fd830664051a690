"""The page of a report in a real browser: it draws, loads nothing else, hides, zooms, answers."""

import json
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlplast.report import serve as serving
from rlplast.report.charts import WHOLE
from rlplast.report.contents import write_report
from rlplast.report.gather import gather
from rlplast.report.summary import summarise
from tests.report.browser import Browser, chromium
from tests.report.runs import write_study

PROGRAM = chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs chromium or google-chrome")

CURVES = "curve-asterix"
ARMS = ("none", "fire", "full_reset")
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
COLOURS = ("#777777", "#0077bb", "#e3772b")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    found = gather([write_study(folder, arms=ARMS, seeds=(1, 2, 3, 4, 5))])
    return write_report(found, summarise(found), folder / "out").as_uri()


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
    return browser.value(f"views.get('{CURVES}').scale('{axis}').domain()")


def place(browser: Browser, x: float, y: float) -> tuple[float, float]:
    """Where in the window a point of the chart of curves is."""
    browser.value(f"document.getElementById('chart-{CURVES}').scrollIntoView({{block: 'center'}})")
    script = f"""(() => {{
        const view = views.get('{CURVES}');
        const box = view.container().querySelector('svg').getBoundingClientRect();
        const [left, top] = view.origin();
        return [box.x + left + view.scale('x')({x}), box.y + top + view.scale('y')({y})];
    }})()"""
    found = browser.value(script)
    return found[0], found[1]


def height(browser: Browser, arm: str, x: float) -> float:
    """The value of an arm's curve at x."""
    script = f"JSON.parse(document.getElementById('data').textContent).charts['{CURVES}']"
    found: list[dict[str, Any]] = browser.value(f"{script}.datasets.curves")
    (row,) = [own for own in found if own["arm"] == arm]
    return row["y"][row["x"].index(x)]


def test_page_draws_every_chart_without_complaint_and_asks_for_nothing_else(
    opened: Browser, address: str
):
    boxes = opened.value(
        "[...document.querySelectorAll('figure.chart svg')]"
        ".map((own) => own.getBoundingClientRect()).map((box) => [box.width, box.height])"
    )
    assert len(boxes) == opened.value(CHARTS) >= 6
    assert all(width > 200 and height > 50 for width, height in boxes)
    assert opened.value("document.title") == "demo"
    opened.click("#show-1")
    opened.click("#show-all")
    assert opened.complaints == []
    assert [own for own in opened.requests if not own.startswith("data:image/svg")] == [address]


def test_complaints_and_requests_would_be_seen(opened: Browser, tmp_path: Path):
    page = tmp_path / "bad.html"
    page.write_text("<img src='missing.png'><script>undefined_name()</script>")
    opened.open(page.as_uri())
    assert any("undefined_name" in complaint for complaint in opened.complaints)
    assert any(request.endswith("missing.png") for request in opened.requests)


@pytest.mark.parametrize("chart", [CURVES, "score-asterix", "metrics-asterix-q", "cost"])
def test_a_click_on_its_box_hides_an_arm_everywhere_and_the_next_shows_it(
    opened: Browser, chart: str
):
    before, lines = drawn(opened, chart), rows(opened)
    assert all(before) and all(lines)
    opened.click("#show-1")
    opened.wait_for(f"{DRAWN.format(chart, COLOURS[1])} === 0")
    assert drawn(opened, chart)[::2] == before[::2]
    assert rows(opened) == [lines[0], 0, lines[2]]
    opened.click("#show-1")
    opened.wait_for(f"{DRAWN.format(chart, COLOURS[1])} === {before[1]}")
    assert rows(opened) == lines


def test_all_arms_can_be_hidden_and_shown_again_at_once(opened: Browser):
    before, lines = drawn(opened), rows(opened)
    opened.click("#show-none")
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[0])} === 0")
    assert (drawn(opened), rows(opened)) == ([0, 0, 0], [0, 0, 0])
    opened.click("#show-all")
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[0])} > 0")
    assert (drawn(opened), rows(opened)) == (before, lines)


def test_axes_fit_the_arms_that_are_shown(opened: Browser):
    highest = domain(opened, "y")[1]
    opened.click("#show-2")  # the arm with the highest scores
    opened.wait_for(f"views.get('{CURVES}').scale('y').domain()[1] < {highest}")
    assert domain(opened, "y")[1] >= height(opened, "fire", 6000)
    opened.click("#show-2")
    opened.wait_for(f"views.get('{CURVES}').scale('y').domain()[1] === {highest}")


def test_a_point_under_the_mouse_says_its_arm_value_and_interval(opened: Browser):
    value = height(opened, "fire", 5000)
    x, y = place(opened, 5000, value)
    opened.move(x - 40, y - 40)
    opened.move(x, y)
    tip = "document.querySelector('#vg-tooltip-element.visible')"
    opened.wait_for(f"{tip} !== null")
    text = opened.value(f"{tip}.innerText")
    assert "fire" in text
    assert "5,000" in text
    assert f"{value:.4g}" in text
    assert "interval from" in text


def test_the_wheel_with_ctrl_zooms_and_a_double_click_resets(opened: Browser):
    whole = domain(opened, "x")
    x, y = place(opened, 4000, 100)
    opened.move(x, y)
    opened.move(x, y, "mouseWheel", deltaX=0, deltaY=100)  # scrolls the page
    assert domain(opened, "x") == whole
    x, y = place(opened, 4000, 100)
    opened.move(x, y)
    opened.move(x, y, "mouseWheel", deltaX=0, deltaY=-200, modifiers=2)
    opened.wait_for(f"views.get('{CURVES}').scale('x').domain()[0] > {whole[0]}")
    low, high = domain(opened, "x")
    assert whole[0] < low < 4000 < high < whole[1]
    for kind in ("mousePressed", "mouseReleased", "mousePressed", "mouseReleased"):
        opened.move(x, y, kind, button="left", clickCount=2)
    opened.wait_for(f"views.get('{CURVES}').scale('x').domain()[0] === {whole[0]}")
    assert domain(opened, "x") == whole


def test_a_drag_moves_the_clock(opened: Browser):
    x, y = place(opened, 4000, 100)
    low, high = domain(opened, "x")
    opened.move(x, y)
    opened.move(x, y, "mousePressed", button="left", clickCount=1)
    opened.move(x - 100, y, buttons=1)
    opened.move(x - 100, y, "mouseReleased", button="left", clickCount=1)
    opened.wait_for(f"views.get('{CURVES}').scale('x').domain()[0] > {low}")
    moved = domain(opened, "x")
    assert moved[1] - moved[0] == pytest.approx(high - low)


def test_each_seed_has_a_line_on_demand(opened: Browser):
    before = drawn(opened)
    opened.click("#show-seeds")
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[1])} > {before[1]}")
    assert drawn(opened) == [count + 5 for count in before]
    opened.click("#show-seeds")
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[1])} === {before[1]}")


def test_a_chosen_layer_is_drawn_also_after_the_window_changed(browser: Browser, tmp_path: Path):
    study = write_study(tmp_path, arms=ARMS[:2], seeds=(1, 2))
    layers = {"": 1.0, "/fc1": 2.0, f"/{WHOLE}": 3.0}  # the last one as the choice calls them all
    for path in study.rglob("metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        lines = [row | {f"metric/srank/q{k}": v for k, v in layers.items()} for row in rows]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = gather([study])
    chart = "metrics-asterix-q"
    draw_all(browser, write_report(found, summarise(found), tmp_path / "out").as_uri())
    texts = f"document.querySelector('#chart-{chart} select')"
    assert browser.value(f"[...{texts}.options].map((own) => own.text)") == [WHOLE, "fc1", WHOLE]
    choose = f"(() => {{const s = {texts}; s.selectedIndex = 1; "
    browser.value(choose + "s.dispatchEvent(new Event('change', {bubbles: true}))})()")
    browser.wait_for(f"views.get('{chart}').signal('layer') === 'fc1'")
    before = browser.value(f"views.get('{chart}').__stamp = 1")
    assert before == 1
    browser.ask(
        "Emulation.setDeviceMetricsOverride",
        width=900,
        height=800,
        deviceScaleFactor=1,
        mobile=False,
    )
    try:
        browser.wait_for(
            f"views.get('{chart}').__stamp === undefined && {texts}?.selectedIndex === 1"
        )
        assert browser.value(f"views.get('{chart}').signal('layer')") == "fc1"
    finally:
        browser.ask("Emulation.clearDeviceMetricsOverride")
    assert browser.complaints == []


def test_pointing_at_a_box_makes_the_other_arms_faint(opened: Browser):
    box = opened.value(
        "(() => { const b = document.querySelector('label[data-points=\"1\"]')"
        ".getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
    )
    opened.move(5, 5)
    opened.move(*box)
    opened.wait_for(f"views.get('{CURVES}').signal('focus') === 'fire'")
    lines = f"[...document.querySelectorAll('#chart-{CURVES} .mark-line path')]"
    opened.wait_for(f"{lines}.filter((own) => own.getAttribute('opacity') === '0.12').length === 2")
    opened.move(5, 5)
    opened.wait_for(f"views.get('{CURVES}').signal('focus') === null")


def test_boxes_work_with_the_keyboard(opened: Browser):
    focused = ""
    for _ in range(30):
        opened.press("Tab", 9)
        focused = opened.value("document.activeElement.id")
        if focused == "show-2":
            break
    assert focused == "show-2"
    opened.press(" ", 32)
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[2])} === 0")
    assert all(drawn(opened)[:2])


def test_choice_is_kept_in_the_address(opened: Browser, address: str):
    opened.click("#show-0")
    kept = opened.value("location.href")
    assert kept == f"{address}#hide=0"
    draw_all(opened, kept)
    opened.wait_for(f"{DRAWN.format(CURVES, COLOURS[0])} === 0")
    assert all(drawn(opened)[1:])
    assert opened.value("document.getElementById('show-0').checked") is False


def test_page_is_no_wider_than_a_phone(opened: Browser, address: str):
    metrics = {"width": 420, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    opened.ask("Emulation.setDeviceMetricsOverride", **metrics)
    try:
        draw_all(opened, address)
        assert opened.value("document.documentElement.scrollWidth") == 420
        widths = opened.value(
            "[...document.querySelectorAll('figure.chart svg')]"
            ".map((own) => own.getBoundingClientRect().width)"
        )
        assert max(widths) <= 420
    finally:
        opened.ask("Emulation.clearDeviceMetricsOverride")


def test_dark_scheme_has_light_text_and_axes(opened: Browser):
    text = "getComputedStyle(document.querySelector('{}')).{}"
    colours = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        opened.ask("Emulation.setEmulatedMedia", features=[feature])
        colours[scheme] = [
            opened.value(text.format("body", "color")),
            opened.value(text.format(f"#chart-{CURVES} .role-axis-label text", "fill")),
        ]
    opened.ask("Emulation.setEmulatedMedia", features=[])
    assert colours["light"] == ["rgb(27, 30, 35)"] * 2
    assert colours["dark"] == ["rgb(230, 232, 234)"] * 2


def test_a_served_page_is_renewed_without_losing_what_was_chosen(
    browser: Browser, tmp_path: Path
) -> None:
    study = write_study(tmp_path, ARMS, range(3), statuses={("asterix", "none", 2): "running"})
    out = tmp_path / "out"

    def write() -> None:
        found = gather([study])
        write_report(found, summarise(found), out, pictures=False)

    write()
    with serving._Server(("127.0.0.1", 0), partial(serving._Handler, directory=str(out))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            draw_all(browser, f"http://127.0.0.1:{server.server_port}/report.html")
            browser.value("window.same = true")
            browser.click("#show-2")
            x, y = place(browser, 4000, 50)
            browser.move(x, y)
            browser.move(x, y, "mouseWheel", deltaX=0, deltaY=-200, modifiers=2)
            browser.wait_for(f"views.get('{CURVES}').scale('x').domain()[0] > 0")
            browser.value("document.getElementById('costs').open = false")
            zoomed = domain(browser, "x")
            browser.value(f"views.get('{CURVES}').__old = 1")
            (run,) = study.glob("cells/asterix/seed-2/none-*/run.json")
            run.write_text(run.read_text().replace("running", "done"))
            write()
            os.utime(out / "report.html", (time.time() + 5, time.time() + 5))
            browser.wait_for(
                "document.querySelector('.card').innerText.includes('9 runs are done')"
            )
            last = f"document.querySelector('#chart-{CURVES} figcaption').innerText"
            assert "not ended" not in browser.value(last)
            browser.wait_for(f"views.get('{CURVES}').__old === undefined")
            assert domain(browser, "x") == zoomed
            assert browser.value("window.same") is True
            assert browser.value("document.getElementById('show-2').checked") is False
            assert browser.value("document.getElementById('costs').open") is False
            assert browser.complaints == []
        finally:
            server.shutdown()
            thread.join()


def test_without_scripts_pictures_stand_in_the_place_of_charts(
    browser: Browser, address: str
) -> None:
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


def test_sections_unfold_by_their_links_and_on_paper(browser: Browser, address: str) -> None:
    browser.open("about:blank")
    browser.open(address)
    closed = "document.querySelectorAll('.section:not([open])').length"
    assert browser.value(closed) > 3
    browser.click("nav a[href='#costs']")
    browser.wait_for("views.has('cost')")
    assert browser.value("document.getElementById('costs').open") is True
    browser.value("dispatchEvent(new Event('beforeprint'))")
    assert browser.value(closed) == 0
