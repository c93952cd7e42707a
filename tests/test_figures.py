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


MACHINE = {"processor": "x86_64, some CPU", "cores": 2, "memory_gb": 8.0}
TEST = {"metric": "accuracy", "a": 0.9, "b": 0.89, "difference": -0.01, "low": -0.03, "high": 0.01, "p_value": 0.3}
LABELLED = {"rows": 1000, "seconds": 36.0, "first_part_seconds": 3.0, "peak_mb": 510, "peak_mb_first_half": 500}
PLAN = {"rows": 10_000, "hours": 0.01, "peak_mb": 500, "output_gb": 0.5, "parts": 4, "lost_by_a_kill_seconds": 4.0}
USES: dict[str, tuple[str, dict[str, object], str]] = {
    "serve": (
        "serve",
        {
            "run": "reviews-001",
            "clients": 32,
            "load_per_second": 80.0,
            "ratio": 3.5,
            "servers": {
                name: {"requests_per_second": [rate], "p50_ms": 20.0, "p99_ms": 41.0, "requests_at_load": 1500}
                for name, rate in (("plain", 100.0), ("whet", 350.0))
            },
        },
        "| whet | 350 (350 to 350) | 20 ms | 41 ms | 1,500 |",
    ),
    "serve-rough": (
        "serve-rough",
        {"requests": 1000, "ends": {"right": 600, "left": 400}, "memory": [500, 502]},
        "MB after each tenth: 500, 502.",
    ),
    "export": (
        "export",
        {
            "exports": [
                {
                    "run": "reviews-001",
                    "kind": "int8",
                    "megabytes": 23.6,
                    "rows_per_second": [160.0],
                    "milliseconds_one_row": [4.0],
                    "proof": {"largest_difference": 0.5, "changed_labels": 7, "rows": 200, "test": TEST},
                }
            ]
        },
        "| reviews-001 | int8 | 23.6 | 5.0e-01 | 7 of 200 | accuracy 0.8900, -0.0100 (-0.0300 to +0.0100, p = 0.3) | ",
    ),
    "conformal": (
        "conformal",
        {
            "goal": 0.9,
            "splits": 200,
            "runs": [
                {
                    "run": "a",
                    "rows": 450,
                    "coverage": 0.91,
                    "from_5%": 0.87,
                    "to_95%": 0.94,
                    "labels_a_set": 1.3,
                    "empty": 0.01,
                }
            ],
        },
        "| a | 450 | 91.0% | 87.0 to 94.0% | 1.30 | 1.0% |",
    ),
    "batch": (
        "batch-gpu",
        {
            "device": "cuda",
            "rows_per_second": 395.0,
            "same_answers": True,
            **dict.fromkeys(("tenth", "whole", "killed", "resumed"), LABELLED),
            "planned_from_the_tenth": PLAN,
            "plan": PLAN,
        },
        "cuda: 395 rows a second, the same answers after the kill. The plan made from the tenth was 1.00 times",
    ),
    "one-text": (
        "one-text",
        {"run": "a", "ratio": 1.2, "milliseconds_per_text": {"whet predict": [3.0, 4.0, 5.0]}},
        "| whet predict | 4.00 ms | 3.00 to 5.00 |",
    ),
    "predict-start": (
        "predict-start",
        {"revisions": {"old": "abc"}, "seconds": {"old": [2.0, 3.0, 4.0]}},
        "| `abc` | 3.00 s | 2.00 to 4.00 |",
    ),
    "tune": (
        "tune",
        {
            "sets": [
                {
                    "set": "rte",
                    "rows": 1000,
                    "trainings": 9,
                    "pruned": 3,
                    "minutes": 20.0,
                    "shipped": "trial-004",
                    "default": 0.6,
                    "tuned": 0.7,
                    "p_value": 0.01,
                    "judged": "better",
                    "default_interval": (0.5, 0.7),
                    "tuned_interval": (0.6, 0.8),
                }
            ]
        },
        "| rte | 1,000 | 9 (3 pruned) in 20 min | trial-004 | 60.0% (50.0 to 70.0) | 70.0% (60.0 to 80.0) | 0.01 | ",
    ),
}


@pytest.mark.parametrize("name", list(USES))
def test_a_use_of_a_model_has_its_table_or_the_command_that_makes_it(name: str, figures: ModuleType) -> None:
    stem, content, said = USES[name]
    assert said in figures.TABLES[name]({stem: {"machine": MACHINE, **content}})
    assert figures.TABLES[name]({}).startswith("`python benchmarks/")


@pytest.mark.parametrize("name", list(USES))
def test_every_such_table_stands_in_a_page(name: str, figures: ModuleType) -> None:
    assert any(f"<!-- results: {name} -->" in page.read_text(encoding="utf-8") for page in figures.pages(ROOT))


def test_names_at_the_ends_of_lines_do_not_overlap(figures: ModuleType) -> None:
    places = figures.apart({"a": (460, 100.0), "b": (460, 104.0), "c": (124, 102.0), "d": (460, 110.0)})
    assert places == {"a": 100.0, "c": 102.0, "b": 116.0, "d": 132.0}
