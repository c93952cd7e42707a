from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.run_folders import build_run
from tests.runs.test_label_errors import folded_run, lines_of
from whet.cli import main

Capture = pytest.CaptureFixture[str]


def test_a_table_within_80_columns_the_list_and_what_to_do_next(tmp_path: Path, capsys: Capture) -> None:
    folder = folded_run(tmp_path / "run")
    assert main(["labels", str(folder.path)]) == 0
    out = capsys.readouterr().out
    lines = lines_of(folder.path / "label_errors.csv")
    assert out.startswith(f"Of 120 rows, {len(lines)} given labels look wrong.")
    table = out.split("\n\n")[1].splitlines()
    assert max(map(len, table)) <= 80
    assert [line.split()[0] for line in table[1:16]] == [line["row"] for line in lines[:15]]
    assert f"… and {len(lines) - 15} more" in table[-1]
    assert "--labels-from" in out
    assert "--review" in out


def test_long_and_hostile_labels_keep_the_table_narrow(tmp_path: Path, capsys: Capture) -> None:
    folder = folded_run(tmp_path / "run", labels=["\x1b[31mred and much longer than that", "b" * 90])
    assert main(["labels", str(folder.path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert max(map(len, out.split("\n\n")[1].splitlines())) <= 80


def test_json_has_every_row(tmp_path: Path, capsys: Capture) -> None:
    folder = folded_run(tmp_path / "run")
    assert main(["labels", str(folder.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 120
    assert len(found["found"]) == len(lines_of(folder.path / "label_errors.csv"))
    assert {"row", "text", "given", "likely", "probability"} <= found["found"][0].keys()


def test_a_list_that_holds_decisions_stays(tmp_path: Path, capsys: Capture) -> None:
    folder = folded_run(tmp_path / "run")
    main(["labels", str(folder.path)])
    path = folder.path / "label_errors.csv"
    edited = path.read_text().replace(",,text-", ",accept,text-", 1)
    path.write_text(edited)
    assert main(["labels", str(folder.path)]) == 0
    assert "stays as it was" in capsys.readouterr().out
    assert path.read_text() == edited


@pytest.mark.parametrize(
    "settings, flags, message",
    [
        ({"task": "multilabel"}, [], "one label per row"),
        ({"task": "regression"}, [], "one label per row"),
        ({"finished": False}, [], "is not finished"),
        ({}, ["--review", "--json"], "--review shows a page"),
        ({}, ["--port", "1234"], "--port and --open"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_2(
    settings: dict[str, object], flags: list[str], message: str, tmp_path: Path, capsys: Capture
) -> None:
    folder = build_run(tmp_path / "run", **settings)  # type: ignore[arg-type]
    assert main(["labels", str(folder.path), *flags]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not (folder.path / "label_errors.csv").exists()


def test_no_run_is_said(tmp_path: Path) -> None:
    assert main(["labels", str(tmp_path)]) == 2


def test_from_a_run_to_a_training_with_the_reviewed_labels(
    tmp_path: Path, tiny_model_folder: Path, capsys: Capture
) -> None:
    from whet.tools.selftest.tiny_run import train_arguments, write_rows

    source, run = tmp_path / "rows.csv", tmp_path / "run"
    write_rows(source, 60)
    assert main(train_arguments(source, tiny_model_folder, run, folds=0)) == 0
    assert main(["labels", str(run), "--quiet"]) == 0
    report = (run / "report.html").read_text()
    path = run / "label_errors.csv"
    assert lines_of(path), "a model of random weights contradicts some labels"
    assert "Labels that look wrong" in report
    path.write_text(path.read_text().replace(",,text-", ",accept,text-"))
    again = [*train_arguments(source, tiny_model_folder, tmp_path / "again", folds=0), "--labels-from", str(path)]
    assert main(again) == 0
    data = json.loads((tmp_path / "again" / "data.json").read_text())
    before = json.loads((run / "data.json").read_text())
    assert data["origin"]["reviewed_labels"]["changed"] == len(lines_of(path))
    assert data["fingerprint"] != before["fingerprint"]
    capsys.readouterr()
    write_rows(source, 20)
    other = [*train_arguments(source, tiny_model_folder, tmp_path / "other", folds=0), "--labels-from", str(path)]
    assert main(other) == 2
    assert "other rows" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
