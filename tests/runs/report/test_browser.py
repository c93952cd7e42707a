from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import chromium, open_page
from tests.run_folders import HOSTILE, build_run
from whet.runs.report.html import write_report


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = build_run(tmp_path_factory.mktemp("runs") / "hostile", hostile=True, resumed=True)
    return write_report(folder).as_uri()


def test_a_report_opens_from_disk_without_complaint_or_request(browser: Any, report: str) -> None:
    with open_page(browser, report) as seen:
        seen.page.wait_for_selector("#chart-loss path.line")
        assert seen.complaints == []
        assert seen.requests == [report]


def test_markup_in_the_data_is_text_on_the_page(browser: Any, report: str) -> None:
    with open_page(browser, report) as seen:
        assert seen.page.locator("td.text").first.inner_text().startswith(HOSTILE)
        assert seen.page.title() == "hostile · whet"
        assert seen.page.locator("img").count() == 0


def test_hovering_tells_the_value_of_the_step(browser: Any, report: str) -> None:
    with open_page(browser, report) as seen:
        seen.page.locator("#chart-scores .plot").hover()
        tip = seen.page.locator("#chart-scores .tip")
        assert "step" in tip.inner_text()
        assert "%" in tip.inner_text()


def test_dragging_zooms_and_a_double_click_shows_all(browser: Any, report: str) -> None:
    with open_page(browser, report) as seen:
        seen.page.wait_for_selector("#chart-loss path.line")
        first_tick = "document.querySelector('#chart-loss .tick.middle').textContent"
        before = seen.page.evaluate(f"() => {first_tick}")
        seen.page.locator("#chart-loss .plot").scroll_into_view_if_needed()
        box = seen.page.locator("#chart-loss .plot").bounding_box()
        seen.page.mouse.move(box["x"] + 150, box["y"] + 90)
        seen.page.mouse.down()
        seen.page.mouse.move(box["x"] + 250, box["y"] + 90, steps=4)
        seen.page.mouse.up()
        seen.page.wait_for_function(f"before => {first_tick} !== before", arg=before)
        seen.page.locator("#chart-loss .plot").dblclick()
        seen.page.wait_for_function(f"before => {first_tick} === before", arg=before)


@pytest.mark.parametrize("width", [360, 1200])
def test_no_width_makes_the_page_scroll_sideways(browser: Any, report: str, width: int) -> None:
    with open_page(browser, report, viewport={"width": width, "height": 800}) as seen:
        seen.page.wait_for_selector("#chart-loss path.line")
        assert seen.page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_without_scripts_the_drawn_curves_stay(browser: Any, report: str) -> None:
    with open_page(browser, report, java_script_enabled=False) as seen:
        assert seen.page.locator("#chart-loss svg path").count() > 3


def test_dark_is_dark_and_print_is_light(browser: Any, report: str) -> None:
    with open_page(browser, report, color_scheme="dark") as seen:
        background = "() => getComputedStyle(document.body).backgroundColor"
        assert seen.page.evaluate(background) == "rgb(15, 19, 23)"
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate(background) == "rgb(255, 255, 255)"
