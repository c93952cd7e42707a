"""Take the pictures of this folder from a finished run: python docs/images/take_screenshots.py runs/pairs-001

Needs playwright and chromium. The live page is shown as it was after two thirds of the run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from whet.runs.folder import RunFolder
from whet.runs.live.server import start
from whet.runs.report.html import write_report

HERE = Path(__file__).parent
WIDE, PHONE = {"width": 1200, "height": 1000}, {"width": 390, "height": 844}


def main(run: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        report = write_report(RunFolder.open(run), Path(scratch) / f"{run.name}.html").as_uri()
        server = start(two_thirds(run, Path(scratch)))
        take(browser, server.url, "live-light", "light", WIDE)
        take(browser, server.url, "live-dark-phone", "dark", PHONE)
        take(browser, report, "report-light", "light", WIDE)
        take(browser, report, "report-dark", "dark", WIDE, scroll=1000)
        take(browser, report, "report-light-phone", "light", PHONE)
        server.stop()
        browser.close()


def two_thirds(run: Path, scratch: Path) -> Path:
    """The run as it lay on disk when two thirds of its records were written."""
    copy = scratch / run.name
    copy.mkdir()
    shutil.copy(run / "config.toml", copy)
    lines = (run / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (copy / "records.jsonl").write_text("".join(lines[: len(lines) * 2 // 3]), encoding="utf-8")
    return copy


def take(browser: Browser, url: str, name: str, scheme: str, size: dict[str, int], scroll: int = 0) -> None:
    context = browser.new_context(color_scheme=scheme, viewport=size)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#chart-loss path.line")
    plot = page.locator("#chart-loss .plot").bounding_box()
    if size is WIDE and not scroll and plot["y"] + plot["height"] < size["height"]:
        page.mouse.move(plot["x"] + plot["width"] * 0.45, plot["y"] + plot["height"] / 2)
    page.mouse.wheel(0, scroll)
    page.wait_for_timeout(400)
    page.screenshot(path=HERE / f"{name}.png")
    context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
