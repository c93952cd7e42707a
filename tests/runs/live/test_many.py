"""The page of many runs: its table, its curves, its filter, and how long hundreds of long runs take."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Watched, chromium, open_page
from tests.many_runs import build_many, score_of
from whet.runs.live.server import Library, Server, start

LISTED = "() => document.documentElement.dataset.listed === 'all'"
LINES = "document.querySelectorAll('.overlay path.line').length"
DOTS = "document.querySelectorAll('.scatter circle').length"
DRAWN = f"([lines, dots]) => {LINES} === lines && {DOTS} === dots"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = start(build_many(tmp_path_factory.mktemp("many"), 24))
    yield found
    found.stop()


def names(watched: Watched) -> list[str]:
    return list(watched.page.locator("#runs tbody td.name bdi").all_inner_texts())


def test_every_run_is_a_row_a_line_and_a_dot(browser: Any, server: Server) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(DRAWN, arg=[24, 24])
        assert len(set(names(seen))) == 24
        heads = seen.page.locator("#runs thead th").all_inner_texts()
        assert {"accuracy", "95% interval", "time", "batch_size", "learning_rate", "seed"} <= set(heads)
        row = seen.page.locator("#runs tr", has_text="run-007").inner_text()
        assert f"{100 * score_of(7):.1f}%" in row
        colours = seen.page.evaluate(
            "() => [...document.querySelectorAll('#runs .swatch')].map((e) => e.style.getPropertyValue('--role'))"
        )
        assert len(set(colours)) == 24
        assert seen.complaints == []
        assert seen.outside(server.url) == []


def test_a_column_sorts_and_sorts_the_other_way(browser: Any, server: Server) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(LISTED)
        score = seen.page.locator("#runs th button", has_text="accuracy")
        score.click()
        first = [int(name[-3:]) for name in names(seen)]
        assert [score_of(number) for number in first] == sorted(map(score_of, first), reverse=True)
        score.click()
        again = [int(name[-3:]) for name in names(seen)]
        assert [score_of(number) for number in again] == sorted(map(score_of, again))
        assert seen.page.locator("#runs th[aria-sort=ascending]").inner_text().startswith("accuracy")


@pytest.mark.parametrize(
    "words, count",
    [("batch_size=16", 8), ("batch_size=16 score>0.8", 5), ("run-01", 10), ("batch_size>16", 8), ("no", 0)],
)
def test_a_filter_leaves_what_fits_in_table_and_charts(browser: Any, server: Server, words: str, count: int) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(LISTED)
        seen.page.locator(".filter").fill(words)
        seen.page.wait_for_function(DRAWN, arg=[count, count])
        assert len(names(seen)) == count
        assert f"{count} of 24 runs" in seen.page.locator(".count").inner_text()


def test_picked_runs_are_drawn_alone(browser: Any, server: Server) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(LISTED)
        for name in ("run-003", "run-011"):
            seen.page.get_by_label(f"Pick {name}").check()
        seen.page.wait_for_function(DRAWN, arg=[2, 2])
        seen.page.get_by_text("unpick all").click()
        seen.page.wait_for_function(DRAWN, arg=[24, 24])


def test_the_scatter_takes_another_setting_and_names_its_dots(browser: Any, server: Server) -> None:
    with open_page(browser, server.url) as seen:
        seen.page.wait_for_function(DRAWN, arg=[24, 24])
        seen.page.locator("label", has_text="score against").locator("select").select_option("seed")
        seen.page.locator(".scatter h3", has_text="Score against seed").wait_for()
        seen.page.wait_for_timeout(100)
        box = seen.page.locator(".scatter circle").nth(5).bounding_box()
        seen.page.mouse.move(box["x"] + 3, box["y"] + 3)
        assert "seed " in seen.page.locator(".scatter .tip").inner_text()
        assert seen.page.locator(".overlay path.strong").count() == 1


def test_it_fits_a_phone(browser: Any, server: Server) -> None:
    with open_page(browser, server.url, viewport={"width": 380, "height": 800}) as seen:
        seen.page.wait_for_function(DRAWN, arg=[24, 24])
        assert seen.page.evaluate("() => document.documentElement.scrollWidth") <= 380


def test_only_what_is_new_is_sent_again(tmp_path: Path) -> None:
    library = Library(build_many(tmp_path, 5))
    first = library.lines(0, seconds=60)
    assert len(first["runs"]) == 5
    assert not first["more"]
    assert library.lines(first["revision"])["runs"] == []
    with open(tmp_path / "run-003" / "records.jsonl", "a") as file:
        file.write("\n")
    assert [run["name"] for run in library.lines(first["revision"], seconds=60)["runs"]] == ["run-003"]


def test_an_answer_does_not_wait_for_all_runs(tmp_path: Path) -> None:
    library = Library(build_many(tmp_path, 5))
    first = library.lines(0, seconds=-1)
    assert first["more"]
    assert len(first["names"]) == 5
    assert first["runs"] == []
    rest = library.lines(0, seconds=60)
    assert not rest["more"]
    assert len(rest["runs"]) == 5


def peak_of(root: Path) -> int:
    """Bytes that reading the runs takes at most."""
    library = Library(root)
    tracemalloc.start()
    try:
        assert not library.lines(0, seconds=600)["more"]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_length_of_runs(tmp_path: Path) -> None:
    short, long = (build_many(tmp_path / str(steps), 1, steps) for steps in (6000, 24_000))
    peak_of(short)  # what is loaded and cached once
    assert peak_of(long) < 1.5 * peak_of(short)


@pytest.mark.slow
def test_five_hundred_runs_of_ten_thousand_points_are_painted_at_once(browser: Any, tmp_path: Path) -> None:
    build_many(tmp_path, 500, 10_000)
    server = start(tmp_path)
    try:
        with open_page(browser, server.url) as seen:
            seen.page.set_default_timeout(120_000)
            seen.page.wait_for_function("() => document.querySelectorAll('#runs tbody tr').length === 500")
            rows = seen.page.evaluate("() => performance.now()")
            seen.page.wait_for_function(f"() => {PAINT}")
            paint = seen.page.evaluate(f"() => {PAINT}.startTime")
            seen.page.wait_for_function(LISTED)
            seen.page.wait_for_function(DRAWN, arg=[500, 500])
            whole = seen.page.evaluate("() => performance.now()")
            frame = seen.page.evaluate(SORTED)
            print(
                f"500 runs of 10,000 points: first paint {paint:.0f} ms, all rows {rows:.0f} ms, "
                f"all curves {whole:.0f} ms, sorted {frame:.0f} ms"
            )
            # What there is to see first must not wait for what takes long: a tenth of reading it all is generous.
            assert paint < 0.5 * whole
            assert seen.complaints == []
    finally:
        server.stop()


PAINT = "performance.getEntriesByName('first-contentful-paint')[0]"
SORTED = """async () => {
  const before = performance.now();
  document.querySelectorAll("#runs th button")[1].click();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - before;
}"""
