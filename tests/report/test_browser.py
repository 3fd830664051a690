"""The page of a report in a real browser: it renders, complains and loads nothing, hides arms."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlplast.report.contents import write_report
from rlplast.report.gather import gather
from rlplast.report.summary import summarise
from tests.report.browser import Browser, chromium
from tests.report.runs import write_study

PROGRAM = chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs chromium or google-chrome")

# How many elements of an arm take up room on the page: hidden ones have boxes of no size.
SHOWN = """
[...document.querySelectorAll('[id^="arm-{0}-"], [data-arm="{0}"]')]
    .map((own) => own.getBoundingClientRect())
    .filter((box) => box.width + box.height > 0).length
"""
ARMS = ("none", "fire", "full_reset")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    found = gather([write_study(folder, arms=ARMS, seeds=(1, 2))])
    return write_report(found, summarise(found), folder / "out").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with Browser(PROGRAM, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(browser: Browser, address: str) -> Browser:
    """The browser, with the page just loaded."""
    browser.open("about:blank")  # a changed part after # alone would not load it again
    browser.requests.clear()
    browser.complaints.clear()
    browser.open(address)
    return browser


def shown(browser: Browser) -> list[int]:
    return [browser.value(SHOWN.format(arm)) for arm in range(len(ARMS))]


def test_page_renders_without_complaint_and_asks_for_nothing_else(opened: Browser, address: str):
    boxes = opened.value(
        "[...document.querySelectorAll('figure svg')].map((own) => own.getBoundingClientRect())"
        ".map((box) => [box.width, box.height])"
    )
    assert len(boxes) >= 7
    assert all(width > 300 and height > 50 for width, height in boxes)
    assert opened.value("document.title") == "demo"
    opened.click("#show-1")
    opened.click("#show-all")
    assert opened.complaints == []
    assert opened.requests == [address]


def test_complaints_and_requests_would_be_seen(opened: Browser, tmp_path: Path):
    page = tmp_path / "bad.html"
    page.write_text("<img src='missing.png'><script>undefined_name()</script>")
    opened.open(page.as_uri())
    assert any("undefined_name" in complaint for complaint in opened.complaints)
    assert any(request.endswith("missing.png") for request in opened.requests)


def test_a_click_on_its_box_hides_an_arm_everywhere_and_the_next_shows_it(opened: Browser):
    before = shown(opened)
    assert all(before)
    opened.click("#show-1")
    assert shown(opened) == [before[0], 0, before[2]]
    display = "getComputedStyle(document.querySelector('{}')).display"
    for own in ('[id^="arm-1-curve-asterix-"]', 'tr[data-arm="1"]', 'th[data-arm="1"]'):
        assert opened.value(display.format(own)) == "none"
        assert opened.value(display.format(own.replace("1", "2"))) != "none"
    opened.click("#show-1")
    assert shown(opened) == before


def test_all_arms_can_be_hidden_and_shown_again_at_once(opened: Browser):
    before = shown(opened)
    for arm in range(len(ARMS)):
        opened.click(f"#show-{arm}")
    assert shown(opened) == [0, 0, 0]
    opened.click("#show-all")
    assert shown(opened) == before


def test_boxes_work_with_the_keyboard(opened: Browser):
    before = shown(opened)
    focused = ""
    for _ in range(30):
        opened.press("Tab", 9)
        focused = opened.value("document.activeElement.id")
        if focused == "show-2":
            break
    assert focused == "show-2"
    opened.press(" ", 32)
    assert shown(opened) == [before[0], before[1], 0]


def test_choice_is_kept_in_the_address(opened: Browser, address: str):
    opened.click("#show-0")
    kept = opened.value("location.href")
    assert kept == f"{address}#hide=0"
    opened.open("about:blank")
    opened.open(kept)
    visible = shown(opened)
    assert visible[0] == 0
    assert all(visible[1:])
    assert opened.value("document.getElementById('show-0').checked") is False


def test_page_is_no_wider_than_a_phone(opened: Browser):
    opened.ask(
        "Emulation.setDeviceMetricsOverride",
        width=390,
        height=800,
        deviceScaleFactor=1,
        mobile=True,
    )
    try:
        assert opened.value("document.documentElement.scrollWidth") == 390
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
            opened.value(text.format('.picture svg [id$="matplotlib.axis_1"] text', "fill")),
        ]
    opened.ask("Emulation.setEmulatedMedia", features=[])
    assert colours["light"] == ["rgb(27, 30, 35)"] * 2
    assert colours["dark"] == ["rgb(230, 232, 234)"] * 2
