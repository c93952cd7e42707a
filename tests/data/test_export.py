"""Writing a source's own rows: a file is complete or as it was before."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whet.data.export import write_rows
from whet.errors import DataError


def broken_after_one_row() -> Iterator[list[dict[str, Any]]]:
    yield [{"text": "one"}]
    raise DataError("The second row is broken.")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_an_error_on_the_way_leaves_the_file_as_it_was(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    path.write_text("before")
    with pytest.raises(DataError):
        write_rows(path, ["text"], broken_after_one_row(), [{}, {}])
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "out.csv").symlink_to(tmp_path / "folder" / "real.csv")
    write_rows(tmp_path / "out.csv", ["text"], [[{"text": "one"}]], [{}])
    assert (tmp_path / "out.csv").is_symlink()
    assert (tmp_path / "folder" / "real.csv").read_text() == "text\none\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="There are no named pipes.")
def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_rows, args=(pipe, ["text"], [[{"text": "one"}]], [{}]))
    writer.start()
    assert pipe.read_text() == "text\none\n"
    writer.join()
