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


def test_families_stand_with_path_and_ratio_to_the_faster_stock(figures: ModuleType) -> None:
    def contenders(**speeds: float) -> dict[str, dict[str, float]]:
        return {name.replace("_", " "): {"ms_a_step": each, "peak_mb": 1500.0} for name, each in speeds.items()}

    train = {
        "contenders": contenders(stock_float32=80.0, stock_bf16=60.0, whet=6.0, whet_float32=50.0),
        "job": {"path": "captured", "why": "no fused layers"},
    }
    rates = {"stock pipeline": {"rows_a_second": 1000.0}, "whet": {"rows_a_second": 4000.0}}
    measured = {"family": "MPNet-base", "train": train, "predict": {"contenders": rates}}
    failed = {"family": "BERT-base", "error": "A contender died."}
    results = {"families-gpu": {"device": "H200", "small": False, "families": [failed, measured]}}
    line = figures.families(results).splitlines()[-1]
    assert line == (
        "| MPNet-base | H200 | 80 ms / 60 ms | 6.00 ms | 10 | 1,000 / 4,000 | 4.00 | 1,500 / 1,500 "
        "| captured: no fused layers |"
    )
    loop = {"contenders": contenders(loop_float32=62.0, loop_bf16=70.0, whet=5.0), "job": {"path": "fused", "why": ""}}
    results = {"loop-cpu": {"device": "CPU", "small": True, "families": [{"family": "BERT-base", "loop": loop}]}}
    line = figures.loop(results).splitlines()[-1]
    assert line == "| BERT-base, 6 layers of 384 | CPU | 62 ms / 70 ms | 5.00 ms | 12 | fused |"


@pytest.mark.parametrize("name", ["families", "loop"])
def test_without_results_the_page_names_the_command(name: str, figures: ModuleType) -> None:
    assert figures.TABLES[name]({}) == f"`python benchmarks/{name}.py` measures it.\n"


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
