"""Label files of any size into a folder of Parquet parts: constant memory, and a killed command goes on.

OUT/manifest.json      what is labelled, with what, into which parts; written before the first part
OUT/part-00000.parquet the rows of the source with the model's columns behind their own, so many rows a part

A part gets its name when it is whole, so a part that is there is done. The same command again reads past those.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.config import DataConfig
from whet.errors import DataError, UsageError
from whet.inference.arrow_answers import answer_columns, answer_types
from whet.runs.folder import RunFolder
from whet.utils.files import replacing, sync_folder, unwritable

if TYPE_CHECKING:
    from whet.data.readers.raw_table import RawSplit
    from whet.inference.predictor import Predictor

MANIFEST = "manifest.json"
PART_ROWS = 65_536
END_BYTES = 65_536
StepDone = Callable[[int, int], None]
"""Called with the number of finished rows and of all rows, after every part."""


@dataclass(frozen=True)
class Summary:
    """The result of a command."""

    rows: int
    parts: int
    found: int
    """Parts that an earlier command had finished."""
    unlabelled: int
    """Rows without a text in this command's parts; their predictions are empty."""


def label_in_parts(
    predictor: Predictor,
    source: str,
    config: DataConfig,
    output: Path,
    *,
    part_rows: int = PART_ROWS,
    raw: bool = False,
    tick: StepDone = lambda done, rows: None,
) -> Summary:
    """Label every row of the source, in order, into `output`."""
    with tempfile.TemporaryDirectory(prefix="whet-") as scratch:
        split, files = _open(source, config, Path(scratch))
        plan = _plan(predictor, split, files, config, part_rows, raw)
        _begin(output, plan)
        with RunFolder(output).locked():
            found = unlabelled = 0
            for number, table in enumerate(_parts(split, part_rows)):
                path = output / f"part-{number:05d}.parquet"
                if path.is_file():
                    found += 1
                else:
                    texts = [table.column(name).combine_chunks() for name in plan["texts"]]
                    answers, empty = answer_columns(predictor, texts, raw=raw)
                    _write(path, table, answers, plan["names"])
                    unlabelled += empty
                tick(min(split.rows, (number + 1) * part_rows), split.rows)
            _write_manifest(output, {**plan, "complete": True})
    return Summary(split.rows, plan["parts"], found, unlabelled)


def _open(source: str, config: DataConfig, scratch: Path) -> tuple[RawSplit, list[Path]]:
    from whet.data.readers.source import find_source, read_source

    found = find_source(source, config, scratch)
    if len(found.files) != 1:
        raise UsageError(
            f"{source!r} is not one table in files, which labelling into a folder needs.",
            "Give a file, or a pattern such as 'rows/*.parquet'.",
        )
    (files,) = found.files.values()
    (split,) = read_source(found, config, scratch).values()
    return split, list(files)


def _plan(
    predictor: Predictor, split: RawSplit, files: list[Path], config: DataConfig, part_rows: int, raw: bool
) -> dict[str, Any]:
    """Return the contents of the parts and how they are made: commands with equal plans write equal parts."""
    from whet.data.answer_columns import free_column_names
    from whet.data.columns import choose_columns

    columns = choose_columns(split, config, labelled=False)
    predictor.refuse_other_kind(columns.pair is not None, f"{split.parts[0].file!r} has")
    return {
        "format": 1,
        "complete": False,
        "inputs": [{"file": path.name, "bytes": path.stat().st_size, "end": _end_of(path)} for path in files],
        "model": predictor.fingerprint(),
        "texts": list(columns.texts),
        "names": free_column_names(list(answer_types(predictor.task, predictor.decisions)), split.columns),
        "raw": raw,
        "rows": split.rows,
        "part_rows": part_rows,
        "parts": -(-split.rows // part_rows),
    }


def _end_of(path: Path) -> str:
    """Return a checksum of the file's end, which describes all of a Parquet file, and where a log grows."""
    with open(path, "rb") as file:
        file.seek(-min(END_BYTES, path.stat().st_size), os.SEEK_END)
        return hashlib.sha256(file.read()).hexdigest()


def _begin(output: Path, plan: dict[str, Any]) -> None:
    """Create a folder, or open one with the same plan."""
    if (output / MANIFEST).is_file():
        try:
            before = json.loads((output / MANIFEST).read_text(encoding="utf-8"))
        except ValueError:
            before = {}
        differs = [name for name in plan if name != "complete" and before.get(name) != plan[name]]
        if differs:
            raise UsageError(
                f"{str(output)!r} holds answers to something else: {', '.join(differs)} differ.",
                "Choose another folder with -o, or remove that one.",
            )
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        if any(entry.name not in (".lock", f".{MANIFEST}.tmp") for entry in output.iterdir()):
            raise UsageError(f"{str(output)!r} holds something else.", "Choose another folder with -o.")
        _write_manifest(output, plan)
    except OSError as error:
        raise unwritable(output, error, "Make room there.") from None


def _write_manifest(output: Path, plan: dict[str, Any]) -> None:
    RunFolder(output).write_json(MANIFEST, plan)
    sync_folder(output)


def _parts(split: RawSplit, rows: int) -> Iterator[Any]:
    """Yield Arrow tables of equal size; the last one has the rest."""
    import pyarrow as pa

    held: list[Any] = []
    count = 0
    for batch in split.read(split.columns):
        while len(batch):
            piece = batch.slice(0, rows - count)
            held.append(piece)
            count, batch = count + len(piece), batch.slice(len(piece))
            if count == rows:
                yield pa.Table.from_batches(held)
                held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _write(path: Path, table: Any, answers: dict[str, Any], names: dict[str, str]) -> None:
    """Write a part by an atomic rename."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, column in answers.items():
        table = table.append_column(names[name], column)
    try:
        with replacing(path) as scratch:
            pq.write_table(table, scratch)
    except OSError as error:
        raise unwritable(path.parent, error, "Make room there.") from None
    except pa.ArrowException as error:
        raise DataError(f"the rows do not fit a Parquet table: {str(error).splitlines()[0]}") from None
