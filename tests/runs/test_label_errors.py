from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.run_folders import HOSTILE, build_run
from whet.errors import UsageError
from whet.runs.folder import RunFolder
from whet.runs.label_errors import find_suspects, has_out_of_fold, refuse_other_tasks, write_list
from whet.runs.report.content import read_report
from whet.runs.report.html import render_html
from whet.runs.report.mistakes import read_answers
from whet.utils.review_file import COLUMNS


def folded_run(path: Path, **settings: Any) -> RunFolder:
    """A run whose rows were held out by two folds; each sixth label was changed."""
    folder = build_run(path, **{"rows": 120, "test": False, **settings})
    folder.write_json("data.json", {**folder.data, "folds": [60, 60]})
    table = pq.read_table(folder.path / "predictions.parquet")
    if folder.data["task"] == "binary":
        given = [1 - label if place % 6 == 0 else label for place, label in enumerate(table["label"].to_pylist())]
        changed = table.set_column(table.schema.get_field_index("label"), "label", pa.array(given, pa.int64()))
        pq.write_table(changed, folder.path / "predictions.parquet")
    return folder


def lines_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_rows_whose_label_the_folds_contradict_are_ranked(tmp_path: Path) -> None:
    found = find_suspects(folded_run(tmp_path / "run"))
    assert found is not None
    assert found.looked_at == 120
    changed = {11 + place for place in range(0, 120, 6)}
    assert len(changed & {each.row for each in found.rows}) >= 18
    assert len(found.rows) < 24
    assert all(each.given != each.likely for each in found.rows)
    probabilities = [each.probability for each in found.rows]
    assert probabilities == sorted(probabilities, reverse=True)
    folder = RunFolder.open(tmp_path / "run")
    answers = read_answers(folder, "validation", "binary", folder.data["labels"])
    assert answers is not None
    place = answers.rows.tolist().index(found.rows[0].row)
    assert (answers.texts[place], answers.names[answers.labels[place]]) == (found.rows[0].text, found.rows[0].given)


def test_a_run_without_folds_has_no_judged_rows(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run")
    assert not has_out_of_fold(folder)
    assert find_suspects(folder) is None


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_only_one_label_per_row_is_understood(task: str, tmp_path: Path) -> None:
    folder = folded_run(tmp_path / "run", task=task)
    with pytest.raises(UsageError, match="one label per row"):
        refuse_other_tasks(folder)
    assert find_suspects(folder) is None


def test_the_list_has_a_line_per_row_with_its_number_and_a_free_decision(tmp_path: Path) -> None:
    folder = folded_run(tmp_path / "run")
    found = find_suspects(folder)
    assert found is not None
    path, written = write_list(folder, found)
    lines = lines_of(path)
    assert written
    assert tuple(lines[0]) == COLUMNS
    assert [int(line["row"]) for line in lines] == [each.row for each in found.rows]
    assert {line["decision"] for line in lines} == {""}


def test_a_list_with_decisions_is_never_written_over(tmp_path: Path) -> None:
    folder = folded_run(tmp_path / "run")
    found = find_suspects(folder)
    assert found is not None
    path, _ = write_list(folder, found)
    assert write_list(folder, found)[1]
    edited = path.read_text().replace(",,text-", ",accept,text-", 1)
    path.write_text(edited)
    assert not write_list(folder, found)[1]
    assert path.read_text() == edited


def test_texts_cannot_break_a_line_or_run_in_a_spreadsheet(tmp_path: Path) -> None:
    from whet.runs.label_errors import Suspect

    suspect = Suspect(row=1, text='=cmd|"x"\nnext\x1b[2J', pair=None, given="a", likely="b", probability=0.9)
    line = suspect.as_line()
    assert line.count("\n") == 1
    assert next(csv.reader([line]))[1].startswith("'=cmd")
    assert "\x1b" not in line


def test_the_report_shows_them_with_markup_as_text(tmp_path: Path) -> None:
    page = render_html(read_report(folded_run(tmp_path / "run", hostile=True)))
    section = page.split("<h2>Labels that look wrong</h2>")[1].split("</section>")[0]
    assert "Of 120 rows" in section
    assert HOSTILE not in section
    assert "whet labels" in section
    without = render_html(read_report(build_run(tmp_path / "other")))
    assert "<h2>Labels that look wrong</h2>" not in without
