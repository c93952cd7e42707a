"""A real browser for tests of pages: Debian's chromium, driven by Playwright; skipped where either is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Watched:
    """A page, with everything it complained about and every address it asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def outside(self, own: str) -> list[str]:
        return [url for url in self.requests if not url.startswith(own)]


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; a test that needs it is skipped where it cannot be started."""
    driver = pytest.importorskip("playwright.sync_api", reason="pages are tested where playwright is installed")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary is None:
        pytest.skip("pages are tested where chromium is installed (apt install chromium)")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Any, url: str, **looks: Any) -> Iterator[Watched]:
    """A page of its own, listened to from before it loads."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **looks})
    watched = Watched(context.new_page())
    watched.page.on("console", lambda message: watched.complaints.append(message.text))
    watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    watched.page.on("request", lambda request: watched.requests.append(request.url))
    watched.page.goto(url)
    yield watched
    context.close()
