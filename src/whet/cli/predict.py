"""`whet predict RUN FILE -o OUT`, `whet predict RUN --text "…" --pair "…"`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whet.cli.options import setting_option
from whet.errors import DataError, UsageError
from whet.utils.gpu_files import refuse_impossible
from whet.utils.hf_libraries import load_for_predicting
from whet.utils.text import isolated, json_text

if TYPE_CHECKING:
    from whet.config import DataConfig
    from whet.data.export import OwnRows
    from whet.inference.predictor import Prediction


@dataclass(frozen=True)
class Given:
    """The input to label: of a source, its row numbers in each split."""

    texts: list[str]
    pairs: list[str] | None
    rows: dict[str, list[int]]


@click.command()
@click.argument("run")
@click.argument("source", required=False)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the labelled rows: .csv, .tsv, .jsonl, .parquet, .xlsx, or parts in DIR/.",
)
@click.option("--part-rows", type=click.IntRange(1), help="Rows of a part, where -o is a folder [65536].")
@click.option("--text", "texts", multiple=True, help="Label this text; may be given several times.")
@click.option("--pair", "pairs", multiple=True, help="And this second text, once for each --text.")
@click.option("--text-column", help="Name of the text column, if not that of the training data.")
@click.option("--pair-column", help="Name of the second text's column.")
@setting_option("data", "encoding")
@setting_option("data", "delimiter")
@setting_option("data", "quoting")
@setting_option("data", "header")
@setting_option("data", "sheet")
@setting_option("data", "drop_empty")
@setting_option("data", "max_field_mb")
@click.option("--device", default="auto", help="auto, cpu, cuda or mps.", show_default=True)
@setting_option("train", "precision")
@setting_option("model", "trust_remote_code")
@click.option("--raw", is_flag=True, help="Probabilities as the model gives them, without calibration.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def predict(
    run: str,
    source: str | None,
    output: str | None,
    part_rows: int | None,
    texts: tuple[str, ...],
    pairs: tuple[str, ...],
    text_column: str | None,
    pair_column: str | None,
    device: str,
    precision: str | None,
    trust_remote_code: bool | None,
    raw: bool,
    as_json: bool,
    **reading: Any,
) -> None:
    """Label new texts with a trained model, in input order.

    RUN is a run folder or a model folder; SOURCE a file with the columns of the training data. A file written with -o
    has the rows and columns of SOURCE unchanged, followed by the label and its probability. With a folder (-o OUT/)
    rows are labelled into Parquet parts, in constant memory; running the command again continues after a kill.
    """
    if bool(texts) == (source is not None):
        raise UsageError(
            "predict needs either a file or --text.", "whet predict RUN FILE, or whet predict RUN --text '…'"
        )
    loading = {"device": device, "precision": precision or "auto", "trust_remote_code": bool(trust_remote_code)}
    if source is not None and output is not None and (output.endswith("/") or Path(output).is_dir()):
        refuse_impossible(device)
        config = _settings(run, source, text_column, pair_column, reading)
        _into_folder(run, source, config, Path(output), part_rows, loading, raw)
        return
    if part_rows is not None:
        raise UsageError("--part-rows is for a folder of parts.", "Give one: -o OUT/")
    refuse_impossible(device)
    load_for_predicting()
    if output is not None:
        from whet.data.export import refuse_output

        refuse_output(Path(output), source)
    _refuse_texts(texts, pairs)
    with tempfile.TemporaryDirectory(prefix="whet-") as scratch:
        if texts:
            given, own = _given_texts(texts, pairs, with_rows=output is not None)
        else:
            from whet.data.readers.source import readable_twice

            source = readable_twice(str(source), Path(scratch))
            config = _settings(run, source, text_column, pair_column, reading)
            given = _read(source, config)
            own = _own(source, config, Path(scratch), Path(output)) if output is not None else {}
        from whet.api import load
        from whet.data.answer_columns import flat

        predictor = load(run, **loading)
        predictions = predictor.predict(given.texts, given.pairs, raw=raw)
        if line := predictor.unread_line():
            click.echo(line, err=True)
        if output is not None:
            _write(Path(output), given, own, predictions, with_row=bool(reading["drop_empty"]))
            return
    numbers = [row for rows in given.rows.values() for row in rows]
    table = [{"row": row, **flat(prediction)} for row, prediction in zip(numbers, predictions, strict=True)]
    if as_json:
        for answer in table:
            click.echo(json_text(answer))
    else:
        _print(table)


def _into_folder(
    run: str,
    source: str,
    config: DataConfig,
    output: Path,
    part_rows: int | None,
    loading: dict[str, Any],
    raw: bool,
) -> None:
    from whet.api import load
    from whet.inference.bulk import PART_ROWS, label_in_parts
    from whet.utils.memory import bound_compiled_code

    if config.drop_empty:
        raise UsageError("--drop-empty is not for a folder of parts.", "Rows without a text stay, with empty answers.")
    bound_compiled_code()
    predictor = load(run, **loading)
    done = label_in_parts(
        predictor,
        source,
        config,
        output,
        part_rows=part_rows or PART_ROWS,
        raw=raw,
        tick=lambda rows, of: click.echo(f"{rows:,} of {of:,} rows", err=True),
    )
    if done.found:
        click.echo(f"{done.found} of {done.parts} parts were there already.", err=True)
    if done.unlabelled:
        click.echo(f"{done.unlabelled:,} rows have no text: their answers are empty.", err=True)
    if line := predictor.unread_line():
        click.echo(line, err=True)
    click.echo(f"{done.rows:,} rows in {done.parts} parts in {output}", err=True)


def _refuse_texts(texts: tuple[str, ...], pairs: tuple[str, ...]) -> None:
    if not all(text.strip() for text in texts):
        raise UsageError("--text is empty.", "Give a text to label.")
    if pairs and len(pairs) != len(texts):
        raise UsageError(
            f"--text is given {len(texts)} times and --pair {len(pairs)} times.", "Give one --pair for each --text."
        )


def _given_texts(
    texts: tuple[str, ...], pairs: tuple[str, ...], *, with_rows: bool
) -> tuple[Given, dict[str, list[OwnRows]]]:
    from whet.data.readers.text_files import mend_surrogates

    # Bytes of the command line that are not valid text arrive as surrogates.
    columns = {
        name: [mend_surrogates(text)[0] for text in column]
        for name, column in (("text", texts), ("pair", pairs))
        if column
    }
    given = Given(columns["text"], columns.get("pair"), {"test": list(range(1, len(texts) + 1))})
    if not with_rows:
        return given, {}
    import pyarrow as pa

    from whet.config import DataConfig
    from whet.data.export import OwnRows
    from whet.data.readers.raw_table import from_table

    return given, {"test": [OwnRows(tuple(columns), from_table(pa.table(columns), "--text"), DataConfig())]}


def _settings(run: str, source: str, text: str | None, pair: str | None, reading: dict[str, Any]) -> DataConfig:
    """Return the settings for reading the source: the training data's columns, unless the user names others."""
    from whet.config import make_config
    from whet.runs.folder import RunFolder

    columns: dict[str, Any] = {}
    if (Path(run) / "data.json").is_file():
        columns = RunFolder.open(run).data.get("columns", {})
    names = {"text": text or columns.get("text"), "pair": pair or columns.get("pair")}
    return make_config({"source": source, **names, **{name: value for name, value in reading.items() if value}}).data


def _read(source: str, config: DataConfig) -> Given:
    from whet.data.examples import load_examples

    try:
        splits = load_examples(source, config, labelled=False, echo=partial(click.echo, err=True)).rows
    except DataError as error:
        # Here --text is a text to label.
        error.hint = error.hint.replace("--text", "--text-column").replace("--pair", "--pair-column")
        columns = {"--text": "--text-column", "--pair": "--pair-column"}
        error.go_on = tuple(columns.get(word, word) for word in error.go_on)
        raise
    texts: list[str] = []
    pairs: list[str] = []
    for split in splits.values():
        texts += split.column("text")
        pairs += split.column("pair")
    return Given(texts, pairs or None, {name: split.column("row") for name, split in splits.items()})


def _own(source: str, config: DataConfig, scratch: Path, output: Path) -> dict[str, list[OwnRows]]:
    """Return the source's own tables, by split name."""
    from whet.data.export import own_rows, refuse_own_file

    splits = own_rows(source, config, scratch)
    refuse_own_file(output, splits)
    return {"test": splits["train"]} if list(splits) == ["train"] else splits


def _write(
    path: Path, given: Given, own: dict[str, list[OwnRows]], predictions: list[Prediction], *, with_row: bool
) -> None:
    """Write the source's rows with the predictions; row numbers only if some rows were left out."""
    from whet.data.answer_columns import flat, free_column_names
    from whet.data.export import picked, write_rows

    numbers = [row for rows in given.rows.values() for row in rows]
    added = [
        {**({"row": row} if with_row else {}), **flat(answer)} for row, answer in zip(numbers, predictions, strict=True)
    ]
    columns = list(dict.fromkeys(name for split in given.rows for table in own[split] for name in table.columns))
    names = free_column_names(list(added[0]), columns)
    chunks = (chunk for split, rows in given.rows.items() for chunk in picked(own[split], rows))
    write_rows(path, columns, chunks, [{names[name]: value for name, value in line.items()} for line in added])
    if moved := {name: other for name, other in names.items() if name != other}:
        taken, instead = (", ".join(map(repr, answer)) for answer in (moved, moved.values()))
        click.echo(f"The input has {taken} of its own; the model's answer is in {instead}.", err=True)
    click.echo(f"{len(added)} predictions in {path}", err=True)


def _print(table: list[dict[str, Any]]) -> None:
    from whet.runs.score_words import number

    for line in table:
        left = "  leave to a person" if line.get("abstain") else ""
        label = line["label"]
        if isinstance(label, list):  # each label with its own probability
            chosen = "  ".join(f"{isolated(name)} {line[f'p({name})']:.4f}" for name in label)
            click.echo(f"{line['row']:>6}  {chosen or '(none)'}{left}")
            continue
        shown = number(label) if isinstance(label, float) else isolated(label)
        likely = "" if line.get("probability") is None else f"  {line['probability']:.4f}"
        fits = f"  candidates: {', '.join(map(_short, line['candidates'])) or 'none'}" if "candidates" in line else ""
        click.echo(f"{line['row']:>6}  {shown}{likely}{left}{fits}")


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else isolated(str(value))
