"""`whet predict RUN FILE -o OUT`, `whet predict RUN --text "…" --pair "…"`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whet.errors import DataError, UsageError

if TYPE_CHECKING:
    from whet.predict import Prediction

OUTPUTS = (".csv", ".jsonl", ".json", ".parquet")


@click.command()
@click.argument("run")
@click.argument("source", required=False)
@click.option("-o", "--output", metavar="FILE", help="Write .csv, .jsonl or .parquet instead of the terminal.")
@click.option("--text", help="Label this text.")
@click.option("--pair", help="And this second text.")
@click.option("--text-column", help="Name of the text column, if not that of the training data.")
@click.option("--pair-column", help="Name of the second text's column.")
@click.option("--encoding", default="utf-8", show_default=True, help="Encoding of a text file.")
@click.option("--delimiter", help="What separates columns (found if not given).")
@click.option("--drop-empty", is_flag=True, help="Leave out rows with an empty text.")
@click.option("--device", default="auto", help="auto, cpu, cuda or mps.", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def predict(
    run: str,
    source: str | None,
    output: str | None,
    text: str | None,
    pair: str | None,
    text_column: str | None,
    pair_column: str | None,
    device: str,
    as_json: bool,
    **reading: Any,
) -> None:
    """Label new texts with a trained model, in input order.

    RUN is a run folder or a model folder; SOURCE a file with the columns of the training data.
    """
    if (text is None) == (source is None):
        raise UsageError(
            "predict needs either a file or --text.", "whet predict RUN FILE, or whet predict RUN --text '…'"
        )
    if output is not None:
        _check_output(Path(output), source)
    if text is not None and not text.strip():
        raise UsageError("--text is empty.", "Give a text to label.")
    if text is not None:
        texts, pairs, rows = [text], None if pair is None else [pair], [1]
    else:
        texts, pairs, rows = _read(run, str(source), text_column, pair_column, reading)

    from whet.predict import load

    predictions = load(run, device=device).predict(texts, pairs)
    table = [_flat(row, prediction) for row, prediction in zip(rows, predictions, strict=True)]
    if output:
        _write(Path(output), table, texts, pairs)
        click.echo(f"{len(table)} predictions in {output}", err=True)
    elif as_json:
        for line in table:
            click.echo(json.dumps(line, ensure_ascii=False))
    else:
        _print(table)


def _read(
    run: str, source: str, text: str | None, pair: str | None, reading: dict[str, Any]
) -> tuple[list[str], list[str] | None, list[int]]:
    from whet.data.examples import load_examples
    from whet.runs.store import RunFolder

    columns: dict[str, Any] = {}
    if (Path(run) / "data.json").is_file():
        columns = RunFolder.open(run).data.get("columns", {})
    from whet.config import make_config

    names = {"text": text or columns.get("text"), "pair": pair or columns.get("pair")}
    config = make_config({"source": source, **names, **reading})
    try:
        splits = load_examples(source, config.data, labelled=False).splits
    except DataError as error:
        # Here --text is a text to label.
        error.hint = error.hint.replace("--text", "--text-column").replace("--pair", "--pair-column")
        raise
    texts: list[str] = []
    pairs: list[str] = []
    rows: list[int] = []
    for split in splits.values():
        texts += split["text"][:]
        rows += split["row"][:]
        pairs += split["pair"][:] if "pair" in split.column_names else []
    return texts, pairs or None, rows


def _check_output(path: Path, source: str | None) -> None:
    """Before anything is computed: a file that can be written, and that is not the one being read."""
    if path.suffix.lower() not in OUTPUTS:
        raise UsageError(f"The output file is {str(path)!r}.", "It must end in .csv, .jsonl, .json or .parquet.")
    if not path.parent.is_dir():
        raise UsageError(f"There is no folder {str(path.parent)!r} to write {path.name} to.")
    if source is not None and path.exists() and Path(source).exists() and path.samefile(source):
        raise UsageError(f"{source!r} is both read and written.", "Choose another file for -o.")


def _flat(row: int, prediction: Prediction) -> dict[str, Any]:
    label = prediction.label
    named = {f"p({name})": round(value, 6) for name, value in prediction.probabilities.items()}
    return {"row": row, "label": label, "probability": prediction.probability, **named}


def _write(path: Path, table: list[dict[str, Any]], texts: list[str], pairs: list[str] | None) -> None:
    rows: Iterable[dict[str, Any]] = (
        {"row": line["row"], "text": texts[i], **({"pair": pairs[i]} if pairs else {}), **line}
        for i, line in enumerate(table)
    )
    suffix = path.suffix.lower()
    if suffix == ".csv":
        import csv

        from whet.data.export_csv import harmless_cell

        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = None
            for line in rows:
                if writer is None:
                    writer = csv.DictWriter(file, fieldnames=list(line))
                    writer.writeheader()
                shown = {key: "|".join(value) if isinstance(value, list) else value for key, value in line.items()}
                writer.writerow({k: harmless_cell(v) if isinstance(v, str) else v for k, v in shown.items()})
    elif suffix in (".jsonl", ".json"):
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in rows)
    elif suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        raise UsageError(f"The output file is {str(path)!r}.", "It must end in .csv, .jsonl or .parquet.")


def _print(table: list[dict[str, Any]]) -> None:
    for line in table:
        label = ", ".join(line["label"]) if isinstance(line["label"], list) else line["label"]
        shown = f"{label:.4f}" if isinstance(label, float) else label
        likely = "" if line["probability"] is None else f"  {line['probability']:.4f}"
        click.echo(f"{line['row']:>6}  {shown}{likely}")
