"""Tables and charts in README and docs are those that the stored results make."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "benchmarks" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_hold_what_the_results_say(figures: ModuleType) -> None:
    results = figures.load(ROOT / "benchmarks" / "results")
    for page in figures.pages(ROOT):
        text = page.read_text(encoding="utf-8")
        assert figures.filled(text, results) == text, f"{page.name}: run `make figures`"


def test_charts_are_those_of_the_results(figures: ModuleType) -> None:
    results = figures.load(ROOT / "benchmarks" / "results")
    for name, draw in figures.CHARTS.items():
        kept = ROOT / "docs" / "images" / f"{name}.svg"
        assert (kept.read_text(encoding="utf-8") if kept.exists() else None) == draw(results)


def test_a_changed_number_is_noticed(figures: ModuleType) -> None:
    scores = [{"set": "a", "rows": 16, "seed": 0, "contender": "whet", "accuracy": 0.625, "f1_macro": 0.5}]
    results = {"recipes": {"scores": scores}}
    page = figures.filled("<!-- results: recipes -->\n<!-- end of results -->\n", results)
    assert ".625" in page
    assert figures.filled(page, results) == page
    assert figures.filled(page.replace(".625", ".925"), results) == page


def test_means_are_over_draws_and_then_over_sets(figures: ModuleType) -> None:
    drawn = [("a", 0.5), ("a", 0.7), ("b", 0.9)]
    scores = [{"set": name, "rows": 16, "contender": "whet", "accuracy": value} for name, value in drawn]
    assert figures.means_by_rows(scores, "accuracy") == {"whet": {16: pytest.approx(0.75)}}


def test_charts_are_whole_pictures(figures: ModuleType) -> None:
    scores = [
        {"set": "a", "rows": rows, "contender": name, "accuracy": 0.5 + rows / 1000}
        for rows in (16, 64, 128)
        for name in ("whet", "course")
    ]
    chart = figures.rows_chart({"recipes": {"scores": scores}})
    assert re.findall(r">([\d,]+)</text>", chart) == ["16", "64", "128"]
    assert chart.count("<polyline") == 2
    assert "prefers-color-scheme:dark" in chart
