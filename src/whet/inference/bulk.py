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

import numpy as np

from whet.config import DataConfig
from whet.errors import DataError, EnvironmentFault, UsageError
from whet.runs.folder import RunFolder, sum_of
from whet.utils.files import sync_file, sync_folder

if TYPE_CHECKING:
    from whet.data.readers.raw_table import RawSplit
    from whet.inference.predictor import Predictor

MANIFEST = "manifest.json"
PART_ROWS = 65_536
END_BYTES = 65_536
StepDone = Callable[[int, int], None]
"""Called with the rows that are done and all rows, after every part."""


@dataclass(frozen=True)
class Summary:
    """What a command has done."""

    rows: int
    parts: int
    found: int
    """Parts that an earlier command had finished."""
    unlabelled: int
    """Rows without a text, in the parts of this command: their answers are empty."""


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
                    answers, empty = _answers(predictor, table, plan, raw)
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
    """What the parts hold and how they were made: two commands with the same plan write the same parts."""
    from whet.data.columns import choose_columns
    from whet.data.export import free_names

    columns = choose_columns(split, config, labelled=False)
    if predictor.pairs is not None and predictor.pairs != (columns.pair is not None):
        was, lacks = ("pairs", "no second text") if predictor.pairs else ("single texts", "a second text")
        raise UsageError(f"The model was trained on {was}, and {split.parts[0].file!r} has {lacks}.")
    wanted = {name: "predicted" if name == "label" else f"predicted_{name}" for name in _schema(predictor)}
    return {
        "format": 1,
        "complete": False,
        "inputs": [{"file": path.name, "bytes": path.stat().st_size, "end": _end_of(path)} for path in files],
        "model": _model_sum(predictor),
        "texts": list(columns.texts),
        "names": free_names(wanted, split.columns),
        "raw": raw,
        "rows": split.rows,
        "part_rows": part_rows,
        "parts": -(-split.rows // part_rows),
    }


def _end_of(path: Path) -> str:
    """A sum of the file's end: in Parquet that describes all of it, and a log only grows there."""
    with open(path, "rb") as file:
        file.seek(-min(END_BYTES, path.stat().st_size), os.SEEK_END)
        return hashlib.sha256(file.read()).hexdigest()


def _model_sum(predictor: Predictor) -> str:
    """Changes with the weights, the tokenizer and the decisions."""
    folder = predictor.path / "model" if (predictor.path / "model").is_dir() else predictor.path
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".md")
    return hashlib.sha256("".join(f"{name} {sum_of(folder / name)}\n" for name in names).encode()).hexdigest()


def _begin(output: Path, plan: dict[str, Any]) -> None:
    """A new folder, or one with the same plan."""
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
        raise _unwritable(output, error) from None


def _write_manifest(output: Path, plan: dict[str, Any]) -> None:
    RunFolder(output).write_json(MANIFEST, plan)
    sync_folder(output)


def _parts(split: RawSplit, rows: int) -> Iterator[Any]:
    """Arrow tables of so many rows, the last one with what is left."""
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


def _answers(predictor: Predictor, table: Any, plan: dict[str, Any], raw: bool) -> tuple[dict[str, Any], int]:
    """A column for each of the model's, and how many rows have no text: there they are empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [table.column(name).combine_chunks().cast(pa.large_string()) for name in plan["texts"]]
    there = np.ones(len(table), bool)
    for column in texts:
        there &= pc.fill_null(pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(column)), 0), False).to_numpy(
            zero_copy_only=False
        )
    chosen = [column.filter(pa.array(there)).to_pylist() for column in texts]
    logits = predictor.logits(chosen[0], chosen[1] if len(chosen) > 1 else None)
    said = predictor.decode(logits, raw=raw)
    rows = [_flat(next(said).to_dict()) if full else {} for full in there]
    return {name: pa.array([row.get(name) for row in rows], kind) for name, kind in _schema(predictor).items()}, int(
        (~there).sum()
    )


def _flat(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, **{f"p({name})": value for name, value in answer["probabilities"].items()}}


def _schema(predictor: Predictor) -> dict[str, Any]:
    """The model's columns and their types, the same in every part."""
    import pyarrow as pa

    kind, decided = predictor.task.kind, predictor.decisions
    label = {"regression": pa.float64(), "multilabel": pa.list_(pa.string())}.get(kind, pa.string())
    found: dict[str, Any] = {"label": label}
    if kind != "regression":
        found["probability"] = pa.float64()
    if decided.confidence is not None:
        found["abstain"] = pa.bool_()
    if decided.limit is not None:
        found["candidates"] = pa.list_(pa.float64() if kind == "regression" else pa.string())
    return {**found, **{f"p({name})": pa.float64() for name in predictor.task.labels}}


def _write(path: Path, table: Any, answers: dict[str, Any], names: dict[str, str]) -> None:
    """The part, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, column in answers.items():
        table = table.append_column(names[name], column)
    scratch = path.with_name(f".{path.name}.tmp")
    try:
        pq.write_table(table, scratch)
        sync_file(scratch)
        os.replace(scratch, path)
    except OSError as error:
        raise _unwritable(path.parent, error) from None
    except pa.ArrowException as error:
        raise DataError(f"the rows do not fit a Parquet table: {str(error).splitlines()[0]}") from None


def _unwritable(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(f"Cannot write to {str(path)!r}: {error.strerror or error}.", "Make room there.")
