from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium, open_page
from tests.run_folders import HOSTILE, build_run, step_record
from whet.records import to_line
from whet.runs.folder import RunFolder
from whet.runs.live.server import Server, start

DRAWN = "step => Number(document.documentElement.dataset.drawnStep) >= step"
NOTE_TIMES = """() => {
  window.drawn = {};
  new MutationObserver(() => {
    window.drawn[document.documentElement.dataset.drawnStep] ??= performance.timeOrigin + performance.now();
  }).observe(document.documentElement, { attributes: true });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return build_run(tmp_path / "growing", finished=False, hostile=True)


@pytest.fixture
def server(folder: RunFolder) -> Iterator[Server]:
    found = start(folder.path)
    yield found
    found.stop()


def points(page: Any, chart: str) -> int:
    return int(page.locator(f"#chart-{chart} .chart-svg").get_attribute("data-points"))


def test_points_arrive_while_a_run_grows_without_complaint_or_request_outside(
    browser: Any, server: Server, folder: RunFolder
) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(DRAWN, arg=160)
        before = points(seen.page, "learning_rate")

        def grow() -> None:
            for step in range(161, 201):
                folder.append(step_record(step))
                time.sleep(0.005)

        writer = threading.Thread(target=grow)
        writer.start()
        seen.page.wait_for_function(DRAWN, arg=200)
        writer.join()
        assert points(seen.page, "learning_rate") == before + 40
        assert "200 of 240 steps" in seen.page.locator("#numbers").inner_text()
        assert seen.complaints == []
        assert seen.outside(server.url) == []


def test_markup_in_the_data_is_text_on_the_page(browser: Any, server: Server) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(DRAWN, arg=160)
        assert seen.page.locator("#worst td.text").first.inner_text().startswith(HOSTILE)
        assert seen.page.locator("#confusion tbody th").first.get_attribute("title").startswith(HOSTILE)
        assert seen.page.title() == "growing · whet"
        assert seen.page.locator("img").count() == 0


def test_hovering_tells_the_recorded_value(browser: Any, server: Server) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(DRAWN, arg=160)
        seen.page.locator("#chart-grad_norm .plot").focus()
        seen.page.keyboard.press("ArrowLeft")
        tip = seen.page.locator("#chart-grad_norm .tip").inner_text()
        assert "step 160" in tip
        assert f"{step_record(160).grad_norm:.4g}" in tip


def test_smoothing_and_log_scale_redraw_the_curve(browser: Any, server: Server) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(DRAWN, arg=160)
        line = "document.querySelector('#chart-loss path.line:not(.faint)').getAttribute('d')"
        before = seen.page.evaluate(f"() => {line}")
        seen.page.locator("#smoothing").fill("0")
        seen.page.wait_for_function(f"before => {line} !== before", arg=before)
        rough = seen.page.evaluate(f"() => {line}")
        seen.page.locator("#chart-loss .chip").click()
        seen.page.wait_for_function(f"before => {line} !== before", arg=rough)


def test_a_folder_of_runs_is_listed_and_leads_to_a_run(browser: Any, folder: RunFolder) -> None:
    build_run(folder.path.parent / "other", task="regression")
    server = start(folder.path.parent)
    try:
        with open_page(browser, server.url, viewport={"width": 380, "height": 800}) as seen:
            seen.page.locator("#runs a", has_text="other").click()
            seen.page.wait_for_function(DRAWN, arg=240)
            assert seen.page.locator("#state").inner_text() == "finished"
            assert seen.page.evaluate("() => document.documentElement.scrollWidth") <= 380
            assert seen.complaints == []
    finally:
        server.stop()


def test_an_address_of_no_run_says_so_and_a_broken_one_shows_the_list(browser: Any, folder: RunFolder) -> None:
    server = start(folder.path.parent)
    try:
        with open_page(browser, f"{server.url}#no-such") as seen:
            seen.page.locator("#link", has_text="not there").wait_for()
        with open_page(browser, f"{server.url}#%") as seen:
            seen.page.locator("#runs a", has_text="growing").wait_for()
            assert seen.complaints == []
    finally:
        server.stop()


@pytest.mark.slow
def test_from_written_to_drawn_takes_less_than_a_glance(browser: Any, server: Server, folder: RunFolder) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(DRAWN, arg=160)
        seen.page.evaluate(NOTE_TIMES)
        written = {}
        for step in range(161, 221):
            written[step] = 1000 * time.time()
            folder.append(step_record(step))
            time.sleep(0.11)
        seen.page.wait_for_function(DRAWN, arg=220)
        drawn = seen.page.evaluate("() => window.drawn")
        delays = [drawn[str(step)] - at for step, at in written.items() if str(step) in drawn]
    print(f"written to drawn: median {statistics.median(delays):.0f} ms, longest {max(delays):.0f} ms, n={len(delays)}")
    assert len(delays) > 40


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_training_is_followed_from_its_first_step_to_its_end(
    browser: Any, tmp_path: Path, tiny_model_folder: Path
) -> None:
    rows = [f"{'good' if k % 2 else 'bad'} day number {k},{'yes' if k % 2 else 'no'}" for k in range(240)]
    (tmp_path / "days.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (tmp_path / "runs").mkdir()
    server = start(tmp_path / "runs")
    flags = ["--model", str(tiny_model_folder), "--run", "runs/days", "--quiet", "--offline"]
    training = subprocess.Popen([sys.executable, "-m", "whet", "train", "days.csv", *flags], cwd=tmp_path)
    try:
        with open_page(browser, server.url) as seen:
            seen.page.set_default_timeout(280_000)
            seen.page.locator("#runs a", has_text="days").click()
            seen.page.wait_for_function(DRAWN, arg=1)
            seen.page.wait_for_function("() => document.getElementById('state').textContent === 'finished'")
            assert training.wait(60) == 0
            assert points(seen.page, "scores") > 0
            assert seen.page.locator("#verdict .sentence").inner_text()
            assert seen.complaints == []
    finally:
        training.kill()
        training.wait()
        server.stop()


@pytest.mark.slow
def test_a_hundred_thousand_points_can_be_drawn_zoomed_and_added_to(browser: Any, tmp_path: Path) -> None:
    folder = build_run(tmp_path / "long", finished=False, steps=120_000, evaluations=0)
    with open(folder.path / "records.jsonl", "a") as file:
        file.writelines(to_line(step_record(step, 120_000)) + "\n" for step in range(80_001, 100_001))
    server = start(folder.path)
    try:
        with open_page(browser, server.url) as seen:
            seen.page.wait_for_function(DRAWN, arg=100_000)
            for step in range(100_001, 100_051):
                folder.append(step_record(step, 120_000))
            seen.page.wait_for_function(DRAWN, arg=100_050)
            box = seen.page.locator("#chart-loss .plot").bounding_box()
            seen.page.mouse.move(box["x"] + 150, box["y"] + 90)
            seen.page.mouse.down()
            seen.page.mouse.move(box["x"] + 160, box["y"] + 90, steps=3)
            with seen.page.expect_response(lambda answer: "/series?" in answer.url) as finer:
                seen.page.mouse.up()
            assert len(finer.value.json()["series"]["train_loss"][0]) > 2000
            frames = seen.page.evaluate(FRAMES)
            print(f"frames while the pointer moves over 100,000 points: median {frames:.1f} ms")
            assert seen.complaints == []
    finally:
        server.stop()


FRAMES = """async () => {
  const plot = document.querySelector("#chart-loss .plot");
  const box = plot.getBoundingClientRect();
  const times = [];
  for (let index = 0; index < 60; index++) {
    const before = performance.now();
    plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 60 + index * 5, clientY: box.top + 90 }));
    for (const button of document.querySelectorAll("#chart-loss .chip")) button.click();
    await new Promise((done) => requestAnimationFrame(done));
    times.push(performance.now() - before);
  }
  return times.sort((a, b) => a - b)[30];
}"""
