"""Several labels a row: how many, which come together, and five hundred of them that can still be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data_files import load, text
from tests.run_folders import build_run
from whet.data.audit.audit import audit
from whet.data.audit.columns import several_labels
from whet.runs.label_words import facts_of, per_row, together
from whet.runs.report.content import read_report
from whet.runs.report.html import render_html, render_markdown

LABELS = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]], np.int8)
MANY = [f"label {number:03}" for number in range(500)]


def test_labels_a_row_and_those_that_come_together_are_counted() -> None:
    facts = several_labels(LABELS, ("a", "b", "c"))
    assert facts["labels_a_row"] == {"mean": 1.25, "most": 2, "none": 0.25}
    assert facts["together"] == [{"label": "b", "beside": "a", "rows": 2, "share": 1.0}]


def test_they_are_told_in_words() -> None:
    facts = several_labels(LABELS, ("a", "b", "c"))
    assert per_row(facts["labels_a_row"]) == "1.2 on average, at most 2; 25% of the rows have none"
    assert together(facts["together"]) == "'b' and 'a' (2 rows, 100% of those with 'b')"
    assert [name for name, _ in facts_of(facts)] == ["labels per row", "labels most often together"]
    assert facts_of({"rows": 4}) == []


def test_the_audit_has_them_for_each_split() -> None:
    report = audit(load(([text(n) for n in range(40)], [["a", "b"], ["a"], [], ["b"]] * 10)))
    assert all({"labels_a_row", "together"} <= set(facts) for facts in report.splits.values())


@pytest.fixture(scope="module")
def run_of_many(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build_run(tmp_path_factory.mktemp("many") / "run", task="multilabel", labels=MANY, rows=60)


def test_a_report_of_many_labels_shows_the_weakest_and_the_rest_on_demand(run_of_many: Any) -> None:
    page = render_html(read_report(run_of_many))
    before, _, rest = page.partition("<details><summary>All 500 labels</summary>")
    assert 0 < sum(f">{name}<" in before for name in MANY) <= 20
    assert all(f">{name}<" in rest for name in MANY)


def test_a_markdown_report_of_many_labels_has_no_table_of_all(run_of_many: Any, tmp_path: Path) -> None:
    page = render_markdown(read_report(run_of_many), "plots")
    assert sum(line.startswith("| label ") for line in page.splitlines()) <= 50
    assert "of 500 with the lowest F1" in page


def test_a_report_of_few_labels_shows_all(tmp_path: Path) -> None:
    report = read_report(build_run(tmp_path / "run", task="multilabel"))
    assert [each.name for each in report.weakest] == ["a", "b", "c"]
    assert "All 3 labels" not in render_html(report)


def test_many_label_columns_are_counted_in_one_line() -> None:
    names = [f"topic {number}" for number in range(30)]
    rows = {
        "text": [text(n) for n in range(60)],
        **{name: [int(n % 30 == k) for n in range(60)] for k, name in enumerate(names)},
    }
    line = load(rows, label=",".join(names)).messages[0]
    assert "label in 30 columns, 'topic 0', 'topic 1', 'topic 2' and 27 more: multilabel" in line
