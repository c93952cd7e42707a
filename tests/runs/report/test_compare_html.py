from __future__ import annotations

from pathlib import Path

from tests.run_folders import build_run
from whet.runs.compare import compare
from whet.runs.report.compare_html import overlaid, write_comparison


def compared(tmp_path: Path, count: int = 2) -> str:
    paths = [build_run(tmp_path / f"run-{k}", seed=5, epochs=3 + k).path for k in range(count)]
    return write_comparison(compare(paths), tmp_path / "compare.html").read_text()


def test_scores_settings_and_the_sentence_are_on_the_page(tmp_path: Path) -> None:
    page = compared(tmp_path)
    assert "No difference between run-0 and run-1" in page
    assert "<td>epochs</td><td><bdi>3</bdi></td><td><bdi>4</bdi></td>" in page
    assert "<td>learning_rate</td>" not in page


def test_curves_lie_over_one_another_a_line_a_run(tmp_path: Path) -> None:
    paths = [build_run(tmp_path / name, seed=k).path for k, name in enumerate(("one", "two"))]
    comparison = compare(paths)
    from whet.runs.curves import curves
    from whet.runs.folder import RunFolder

    charts = overlaid(comparison, [curves(RunFolder.open(path).records()) for path in paths])
    assert [line.name for line in charts[0].lines] == ["one", "two"]
    assert {"eval_loss", "main", "train_loss"} <= {chart.id for chart in charts}


def test_more_runs_than_colours_are_compared_and_said_not_to_be_drawn_without_scripts(tmp_path: Path) -> None:
    assert "Without scripts, the curves of 1 more runs are not drawn." in compared(tmp_path, 7)


def test_a_name_is_text(tmp_path: Path) -> None:
    paths = [build_run(tmp_path / f"<script>alert({k})<", rows=20).path for k in range(2)]
    page = write_comparison(compare(paths), tmp_path / "compare.html").read_text()
    assert "<script>alert" not in page


def test_a_run_without_predictions_is_still_compared(tmp_path: Path) -> None:
    paths = [build_run(tmp_path / name, predictions=False).path for name in ("one", "two")]
    page = write_comparison(compare(paths), tmp_path / "compare.html").read_text()
    assert "has no predictions" in page
