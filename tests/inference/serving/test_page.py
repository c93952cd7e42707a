"""The page to try a model, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium, open_page
from tests.inference.serving.models import save_run
from whet.inference.serving import server as module
from whet.inference.serving.server import ModelServer, Settings, serve
from whet.runs.decisions import FILE, Decisions

HOSTILE = "<img src=x onerror=alert(1)>"
READY = "() => document.documentElement.dataset.ready === 'yes'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def _no_pause() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAVING_SECONDS", 0.0)
        yield


@pytest.fixture(scope="module")
def server(browser: Any, tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    folder = save_run(tmp_path_factory.mktemp("page"), tiny_model_folder, labels=("calm", "glad", HOSTILE))
    found = serve(folder, Settings(port=0, device="cpu"))
    yield found
    found.stop()


def test_enter_predicts_and_shows_a_bar_for_each_label(browser: Any, server: ModelServer) -> None:
    assert server.app.predictor is not None
    expected = server.app.predictor.predict("yes apple")
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(READY)
        seen.page.keyboard.type("yes apple")
        seen.page.keyboard.press("Enter")
        seen.page.locator("#answer").wait_for()
        assert seen.page.locator("#label").inner_text() == expected.label
        shown = {
            bar.locator("span").nth(0).inner_text(): bar.locator("span").nth(1).inner_text()
            for bar in seen.page.locator(".bar").all()
        }
        assert shown == {name: f"{100 * value:.1f}%" for name, value in expected.probabilities.items()}
        assert seen.page.locator(".bar.chosen").count() == 1
        assert seen.complaints == []
        assert seen.outside(server.url) == []


def test_markup_in_labels_and_texts_stays_text(browser: Any, server: ModelServer) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(READY)
        seen.page.locator("#text").fill(HOSTILE)
        seen.page.locator("#go").click()
        seen.page.locator(".bar", has_text=HOSTILE).wait_for()
        assert seen.page.locator("img").count() == 0
        assert seen.complaints == []


def test_a_threshold_is_shown_at_the_bar_of_its_label(browser: Any, tiny_model_folder: Path, tmp_path: Path) -> None:
    folder = save_run(tmp_path, tiny_model_folder)
    (folder / "model" / FILE).write_text(Decisions(thresholds={"good": 0.995}).to_json())
    server = serve(folder, Settings(port=0, device="cpu"))
    try:
        with open_page(browser, server.url) as seen:
            seen.page.wait_for_function(READY)
            seen.page.keyboard.type("yes")
            seen.page.keyboard.press("Enter")
            seen.page.locator(".bar.chosen", has_text="bad").wait_for()
            assert "good chosen from 99.5% on" in seen.page.locator(".bar", has_text="good").inner_text()
            assert seen.page.locator(".bar", has_text="chosen from").count() == 1
    finally:
        server.stop()


def test_it_fits_a_phone_and_shift_enter_makes_a_line(browser: Any, server: ModelServer) -> None:
    with open_page(browser, server.url, viewport={"width": 360, "height": 740}, has_touch=True) as seen:
        seen.page.wait_for_function(READY)
        seen.page.keyboard.type("yes")
        seen.page.keyboard.press("Shift+Enter")
        seen.page.keyboard.type("no")
        assert seen.page.locator("#text").input_value() == "yes\nno"
        assert seen.page.locator("#answer").is_hidden()
        seen.page.locator("#go").tap()
        seen.page.locator("#answer").wait_for()
        assert seen.page.evaluate("() => document.documentElement.scrollWidth") <= 360


def test_a_refusal_is_shown(browser: Any, server: ModelServer) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(READY)
        seen.page.locator("#text").fill("apple " * 20_000)
        seen.page.locator("#go").click()
        seen.page.locator("#problem", has_text="longer than").wait_for()


def test_a_model_of_pairs_has_two_fields_and_a_token_is_asked_for(
    browser: Any, tiny_model_folder: Path, tmp_path: Path
) -> None:
    folder = save_run(tmp_path, tiny_model_folder, pair="other")
    (tmp_path / "token").write_text("0123456789abcdef")
    server = serve(folder, Settings(port=0, device="cpu", token_file=tmp_path / "token"))
    try:
        with open_page(browser, server.url) as seen:
            seen.page.locator("#door").wait_for()
            for given in ("wrong", "0123456789abcdef"):
                seen.page.locator("#token").fill(given)
                seen.page.keyboard.press("Enter")
                if given == "wrong":
                    seen.page.locator("#problem", has_text="not the token").wait_for()
            seen.page.wait_for_function(READY)
            assert seen.page.locator("#pair-name").inner_text() == "other"
            seen.page.locator("#text").fill("yes")
            seen.page.keyboard.press("Enter")
            assert seen.page.evaluate("() => document.activeElement.id") == "pair"
            seen.page.locator("#pair").fill("no")
            seen.page.keyboard.press("Enter")
            seen.page.locator("#answer").wait_for()
    finally:
        server.stop()
