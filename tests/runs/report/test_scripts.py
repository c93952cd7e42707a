"""Labels and texts in Arabic, Chinese and emoji: each keeps its own direction in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium, open_page
from tests.run_folders import build_run
from whet.runs.live.server import start
from whet.runs.report.content import read_report
from whet.runs.report.html import render_html, write_report

LABELS = ["إيجابي (1)", "负面", "😀 שמח"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def wide_run(path: Path) -> Any:
    return build_run(path, task="multiclass", labels=LABELS, rows=60)


def directions(page: Any, where: str) -> dict[str, str]:
    """The direction that the browser gives to each text."""
    script = "all => Object.fromEntries(all.map(b => [b.textContent, getComputedStyle(b).direction]))"
    return dict(page.eval_on_selector_all(where, script))


def test_names_keep_their_direction_in_the_report(browser: Any, tmp_path: Path) -> None:
    folder = wide_run(tmp_path / "run")
    with open_page(browser, write_report(folder).as_uri()) as watched:
        found = directions(watched.page, "table.confusion bdi")
        assert found == {LABELS[0]: "rtl", LABELS[1]: "ltr", LABELS[2]: "rtl"}
        assert set(LABELS) <= set(directions(watched.page, "table.wide bdi"))
        head = watched.page.locator(".mistake h3").first
        # The arrow stays between label and answer, and the count behind them, whichever way the names are read.
        places = [head.locator("bdi").nth(place).bounding_box()["x"] for place in (0, 1)]
        places.append(head.locator(".soft").bounding_box()["x"])
        assert places == sorted(places)
        assert watched.complaints == []


def test_names_keep_their_direction_on_the_live_page(browser: Any, tmp_path: Path) -> None:
    wide_run(tmp_path / "اسم-run")
    server = start(tmp_path)
    try:
        with open_page(browser, server.url) as watched:
            watched.page.wait_for_selector("#runs bdi")
            assert directions(watched.page, "#runs bdi") == {"اسم-run": "rtl"}
            watched.page.click("#runs a")
            watched.page.wait_for_selector("table.confusion bdi")
            assert directions(watched.page, "table.confusion bdi")[LABELS[0]] == "rtl"
            assert watched.page.locator("#name bdi").text_content() == "اسم-run"
            assert watched.complaints == []
    finally:
        server.stop()


def test_a_run_with_an_odd_name_can_be_opened(browser: Any, tmp_path: Path) -> None:
    wide_run(tmp_path / "a\x1b\u202eb")
    server = start(tmp_path)
    try:
        with open_page(browser, server.url) as watched:
            watched.page.click("#runs a")
            watched.page.wait_for_selector("table.confusion bdi")
            assert watched.page.locator("#name").text_content() == "a\ufffd\ufffdb"
    finally:
        server.stop()


def test_nothing_that_reorders_is_in_the_page(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run", labels=["a\u202eb\x1b", "</bdi>\u2066c"], rows=40)
    page = render_html(read_report(folder))
    assert not {"\u202e", "\u2066", "\x1b"} & set(page)
    assert "<bdi>a\ufffdb\ufffd</bdi>" in page
    assert "<bdi>&lt;/bdi&gt;\ufffdc</bdi>" in page
