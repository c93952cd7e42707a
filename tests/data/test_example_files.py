from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from whet.data.example_files import SplitRows

TABLE = pa.table({"text": ["one", "two", "three"], "label": [0, 1, 0], "row": [1, 2, 4]})


@pytest.fixture
def rows(tmp_path: Path) -> SplitRows:
    file = tmp_path / "train.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=2)
    return SplitRows.open(file)


def test_rows_and_columns_are_those_of_the_file(rows: SplitRows) -> None:
    assert (len(rows), rows.column_names) == (3, ["text", "label", "row"])
    assert rows.row(2) == {"text": "three", "label": 0, "row": 4}
    assert rows.column("text") == ["one", "two", "three"]


def test_a_column_that_is_not_there_is_empty(rows: SplitRows) -> None:
    assert rows.column("pair") == []


def test_batches_are_the_same_from_a_file_and_from_memory(rows: SplitRows) -> None:
    assert pa.Table.from_batches(rows.batches()) == TABLE == pa.Table.from_batches(SplitRows(TABLE).batches())


def test_examples_are_read_without_the_library_that_takes_a_second_to_load(tmp_path: Path) -> None:
    source = tmp_path / "data.csv"
    source.write_text("text,label\n" + "".join(f"text {n},{n % 2}\n" for n in range(30)))
    script = (
        "import sys; from whet.data.examples import load_examples\n"
        f"found = load_examples({str(source)!r})\n"
        "assert found.rows['train'].row(0)['text'].startswith('text'), 'no rows'\n"
        "assert 'datasets' not in sys.modules, 'datasets was imported'\n"
        "assert found.splits['train'][0] == found.rows['train'].row(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
