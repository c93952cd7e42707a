"""`whet check --write`: what is left, with all columns, in any format."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.data_files import as_csv, labelled, text, write
from whet.cli import main
from whet.config import DataConfig
from whet.data.examples import load_examples

ROWS = labelled(40)
DIRTY = [*ROWS, ROWS[0], ("", "bad"), (f"cafÃ© {text(80)}", "bad"), (text(81), "")]


def table(rows: list[tuple[str, ...]]) -> str:
    return as_csv([(number, *row, "kept, too") for number, row in enumerate(rows, 1)], ("id", "text", "label", "note"))


@pytest.mark.parametrize("name", ["clean.csv", "clean.tsv", "clean.jsonl", "clean.parquet"])
def test_the_rows_that_are_left_have_all_their_columns(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "a.csv", table(DIRTY))
    assert main(["check", str(source), "--write", str(tmp_path / name)]) == 0
    clean = load_examples(tmp_path / name)
    texts = [words for split in clean.rows.values() for words in split.column("text")]
    assert sorted(texts) == sorted([*(words for words, _ in ROWS), f"café {text(80)}"])
    assert clean.columns.label == "label"
    if name.endswith("parquet"):
        written = pq.read_table(tmp_path / name).to_pylist()
        assert written[-1] == {"id": "43", "text": f"café {text(80)}", "label": "bad", "note": "kept, too"}
    again = load_examples(tmp_path / name, DataConfig(drop=("all",), repair=("text",)))
    assert again.origin["dropped"] == again.origin["repaired"] == {}


def test_only_what_is_asked_for_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "a.csv", table(DIRTY))
    assert main(["check", str(source), "--drop", "empty,unlabelled", "--write", str(tmp_path / "b.csv")]) == 0
    assert "42 rows in" in capsys.readouterr().err
    assert "cafÃ©" in (tmp_path / "b.csv").read_text()


def test_text_inside_an_object_is_mended_there(tmp_path: Path) -> None:
    rows = [{"content": {"text": words, "n": 1}, "label": label} for words, label in [*ROWS, ("a cafÃ© b c", "bad")]]
    source = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    out = tmp_path / "b.jsonl"
    assert main(["check", str(source), "--text", "content.text", "--write", str(out)]) == 0
    assert json.loads(out.read_text().splitlines()[-1]) == {"content": {"text": "a café b c", "n": 1}, "label": "bad"}


def test_splits_become_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "data" / "train.csv", as_csv(ROWS))
    write(tmp_path / "data" / "test.csv", as_csv([ROWS[0], (text(90), "bad")]))
    assert main(["check", str(tmp_path / "data"), "--write", str(tmp_path / "b.csv")]) == 2
    assert f"--write {tmp_path}/b/" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "data"), "--write", f"{tmp_path}/b/"]) == 0
    assert {path.name: len(path.read_text().splitlines()) for path in (tmp_path / "b").iterdir()} == {
        "train.csv": 40, "test.csv": 3,
    }  # fmt: skip


def test_nothing_is_written_over_the_source_or_while_an_error_stands(tmp_path: Path) -> None:
    source = write(tmp_path / "a.csv", table(DIRTY))
    before = source.read_bytes()
    assert main(["check", str(source), "--write", str(source)]) == 2
    assert main(["check", str(source), "--drop", "duplicate", "--write", str(tmp_path / "b.csv")]) == 2
    write(tmp_path / "data" / "train.csv", as_csv(ROWS))
    write(tmp_path / "data" / "test.csv", as_csv([ROWS[0], (text(90), "bad")]))
    assert main(["check", str(tmp_path / "data"), "--drop", "duplicate", "--write", f"{tmp_path}/b/"]) == 2
    assert source.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "data"]
