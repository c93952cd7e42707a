from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browser import chromium, open_page
from tests.run_folders import HOSTILE
from tests.runs.test_label_errors import folded_run, lines_of
from whet.runs.folder import RunFolder
from whet.runs.label_errors import find_suspects
from whet.runs.review.decisions import Decisions
from whet.runs.review.server import start
from whet.utils.web_server import Server

OPEN = "count => document.documentElement.dataset.open === String(count)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


class Review:
    """A run under review, served."""

    def __init__(self, folder: RunFolder) -> None:
        found = find_suspects(folder)
        assert found is not None
        self.rows, self.path = found.rows, folder.path / "reviewed.csv"
        self.decisions = Decisions(self.path, found.rows)
        self.server: Server = start(folder.name, found, self.decisions)

    def written(self) -> list[tuple[int, str]]:
        return [(int(line["row"]), line["decision"]) for line in lines_of(self.path)] if self.path.exists() else []


@pytest.fixture
def review(tmp_path: Path) -> Iterator[Review]:
    found = Review(folded_run(tmp_path / "run", hostile=True))
    yield found
    found.server.stop()


def test_keys_decide_and_undo_and_each_is_on_the_disk(browser: Any, review: Review) -> None:
    first, second, third = (each.row for each in review.rows[:3])
    count = len(review.rows)
    with open_page(browser, review.server.url) as seen:
        seen.page.wait_for_function(OPEN, arg=count)
        for left, key in enumerate("aks", start=1):
            seen.page.keyboard.press(key)
            seen.page.wait_for_function(OPEN, arg=count - left)
        assert review.written() == [(first, "accept"), (second, "keep"), (third, "skip")]
        seen.page.keyboard.press("u")
        seen.page.wait_for_function(OPEN, arg=count - 2)
        assert f"row {third} " in seen.page.locator("#place").inner_text()
        seen.page.keyboard.press("u")
        seen.page.wait_for_function(OPEN, arg=count - 1)
        assert review.written()[-2:] == [(third, ""), (second, "")]
        assert seen.page.locator("#counts").inner_text().startswith("1 accepted, 0 kept, 0 skipped")
        assert seen.complaints == []
        assert seen.outside(review.server.url) == []


def test_a_page_that_is_opened_again_goes_on_with_the_next_open_row(browser: Any, review: Review) -> None:
    review.decisions.decide(review.rows[0].row, "accept")
    with open_page(browser, review.server.url) as seen:
        seen.page.wait_for_function(OPEN, arg=len(review.rows) - 1)
        assert f"row {review.rows[1].row} " in seen.page.locator("#place").inner_text()
        seen.page.keyboard.press("ArrowLeft")
        assert seen.page.locator("#before").inner_text() == "accepted"
        assert seen.page.locator("#accept.chosen").count() == 1


def test_markup_in_the_data_is_text_on_the_page(browser: Any, review: Review) -> None:
    with open_page(browser, review.server.url) as seen:
        seen.page.wait_for_function(OPEN, arg=len(review.rows))
        assert seen.page.locator("#text").inner_text().startswith(HOSTILE)
        assert seen.page.locator("#given").inner_text().startswith(HOSTILE)
        assert seen.page.locator("img").count() == 0


def test_it_fits_a_phone_and_buttons_are_large_enough_for_a_thumb(browser: Any, review: Review) -> None:
    looks = {"viewport": {"width": 380, "height": 800}, "has_touch": True, "is_mobile": True}
    with open_page(browser, review.server.url, **looks) as seen:
        seen.page.wait_for_function(OPEN, arg=len(review.rows))
        assert seen.page.evaluate("() => document.documentElement.scrollWidth") <= 380
        assert all(each.bounding_box()["height"] >= 44 for each in seen.page.locator("button").all())
        seen.page.locator("#keep").tap()
        seen.page.wait_for_function(OPEN, arg=len(review.rows) - 1)
    assert review.written() == [(review.rows[0].row, "keep")]


def test_a_server_that_is_gone_is_said_and_the_row_stays(browser: Any, review: Review) -> None:
    with open_page(browser, review.server.url) as seen:
        seen.page.wait_for_function(OPEN, arg=len(review.rows))
        review.server.stop()
        seen.page.keyboard.press("a")
        seen.page.locator("#problem", has_text="nothing was kept").wait_for()
        assert f"row {review.rows[0].row} " in seen.page.locator("#place").inner_text()


def test_another_host_or_origin_is_refused(review: Review) -> None:
    place = f"{review.server.url}api/decisions"
    body = {"row": review.rows[0].row, "decision": "accept"}
    strange = [{"origin": "http://evil.example"}, {"host": "evil.example"}]
    assert [httpx.post(place, json=body, headers=headers).status_code for headers in strange] == [400, 400]
    assert review.written() == []
    assert httpx.post(place, json=body).status_code == 200


@pytest.mark.parametrize(
    "content, headers, status",
    [
        (b'{"row": 1, "decision": "accept"}', {"content-type": "text/plain"}, 415),
        (b'{"row": 999999, "decision": "accept"}', {}, 400),
        (b'{"row": true, "decision": "accept"}', {}, 400),
        (b'{"row": 1, "decision": ["accept"]}', {}, 400),
        (b"[1]", {}, 400),
        (b"[" * 9000, {}, 400),
        (b" " * 20_000, {}, 413),
    ],
)
def test_what_is_no_decision_is_refused(review: Review, content: bytes, headers: dict[str, str], status: int) -> None:
    kind = {"content-type": "application/json", **headers}
    assert httpx.post(f"{review.server.url}api/decisions", content=content, headers=kind).status_code == status
    assert review.written() == []


def test_decisions_survive_a_kill_of_the_server(tmp_path: Path) -> None:
    folder = folded_run(tmp_path / "run")
    found = find_suspects(folder)
    assert found is not None
    command = [sys.executable, "-m", "whet", "labels", str(folder.path), "--review", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    url = next(line for line in process.stdout if "http://" in line).split()[-1]
    row = found.rows[0].row
    httpx.post(f"{url}api/decisions", json={"row": row, "decision": "accept"}).raise_for_status()
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    process.stdout.close()
    assert Decisions(folder.path / "reviewed.csv", found.rows).decided == {row: "accept"}
