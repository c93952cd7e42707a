"""`whet check SOURCE`."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whet.cli.options import resolve, setting_option, settings_options
from whet.utils.text import isolated, json_text, neutral

if TYPE_CHECKING:
    from rich.console import Console

    from whet.config import Config
    from whet.data.audit.audit import Audit, Finding
    from whet.data.examples import Examples

WIDTH = 80
MAX_LABELS = 12
COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


@click.command()
@click.argument("source", required=False)
@settings_options("data")
@setting_option("model", "model")
@setting_option("model", "max_length")
@setting_option("model", "long")
@click.option("--config", "config_file", metavar="FILE.toml", help="Read settings from a file.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any setting by its name.")
@click.option("--write", metavar="FILE", help="Write the rows that are left: .csv, .tsv, .jsonl, .parquet, or DIR/.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def check(
    source: str | None,
    config_file: str | None,
    assignments: tuple[str, ...],
    write: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Show what is in a data source and what is wrong with it.

    SOURCE is a file, a folder of train/validation/test files or of one sub-folder per label, a glob, a hub name,
    sample/pairs, or - for standard input. The exit code is 2 if `whet train` would refuse the data. A sample of the
    rows shows how the model would read them, if the model is on this machine or was named. --write without --drop and
    --repair is --drop all --repair text.
    """
    if source is not None:
        flags["source"] = source
    config = resolve(flags, config_file, assignments)
    if not config.data.source:
        raise click.UsageError("Missing SOURCE. Try: whet check sample/pairs")

    with tempfile.TemporaryDirectory(prefix="whet-") as scratch:
        _check(config, write, as_json, Path(scratch))


def _check(config: Config, write: str | None, as_json: bool, scratch: Path) -> None:
    from whet.data.audit.audit import audit
    from whet.data.clean_file import cleaning, lines, refuse_place, write_clean
    from whet.data.examples import load_examples
    from whet.data.readers.source import readable_twice
    from whet.inference.token_preview import as_read
    from whet.training.recipe import whole_below

    echo = partial(click.echo, err=True)
    source, data = config.data.source, config.data
    if write is not None:
        refuse_place(write, source)
        source, data = readable_twice(source, scratch), cleaning(data)
    examples = load_examples(source, data, whole_below=whole_below(config), echo=echo)
    report = as_read(audit(examples), examples, config.model)
    if as_json:
        columns = {
            "text": examples.columns.text,
            "pair": examples.columns.pair,
            "label": examples.columns.label,
        }
        facts = {
            **report.as_dict(),
            "columns": columns,
            "said": list(examples.messages),
            "origin": examples.origin,
            "fingerprint": examples.fingerprint,
        }
        click.echo(json_text(facts))
    else:
        _show(examples, report)
    report.stop_unless_allowed(data)
    if write is not None:
        for line in lines(write_clean(source, data, examples, write, scratch)):
            echo(line)


def _show(examples: Examples, report: Audit) -> None:
    from rich.text import Text

    from whet.cli.output import make_console

    # A pipe has no width; a terminal may be narrower than the tables.
    console = make_console(sys.stdout)
    console.width = min(WIDTH, console.width) if sys.stdout.isatty() else WIDTH
    for line in examples.messages:
        console.print(Text(line))
    console.print()
    _splits_table(console, report)
    _labels_table(console, report)
    _tokens_line(console, report)
    _findings_table(console, report)


def _splits_table(console: Console, report: Audit) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title_justify="left")
    table.add_column("split")
    for heading in ("rows", "unlabelled", "words: mean", "median", "95%", "most"):
        table.add_column(heading, justify="right")
    for name, facts in report.splits.items():
        for place, (column, words) in enumerate(facts["words"].items()):
            counts = (f"{facts['rows']:,}", f"{facts['unlabelled']:,}") if place == 0 else ("", "")
            label = shown(name) if place == 0 else f"  its {shown(column)}"
            numbers = [f"{words.get(key, 0):g}" for key in ("mean", "p50", "p95", "max")]
            table.add_row(label, *counts, *numbers)
    console.print(table)
    console.print()


def _tokens_line(console: Console, report: Audit) -> None:
    """Return a line about how the model reads the training rows, or other rows without those."""
    from rich.text import Text

    if not report.tokens or not report.tokens["splits"]:
        return
    splits = report.tokens["splits"]
    found = splits.get("train") or next(iter(splits.values()))
    per_word = f", {found['per_word']:.1f} a word" if found["per_word"] else ""
    console.print(
        Text(
            f"{report.tokens['model']} reads up to {report.tokens['max_length']:,} tokens of a row. "
            f"Tokens: {report.tokens['unknown']:.1%} unknown{per_word}."
        )
    )
    console.print()


def _labels_table(console: Console, report: Audit) -> None:
    from rich.table import Table
    from rich.text import Text

    if report.task.kind == "regression":
        for name, facts in report.splits.items():
            if "range" in facts:
                low, mean, high = facts["range"]
                console.print(Text(f"{name}: labels from {low:g} to {high:g}, mean {mean:.3g}"))
        console.print()
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("label")
    for name in report.splits:
        table.add_column(shown(name), justify="right")
    names = list(report.task.labels)
    for label in names[:MAX_LABELS]:
        cells = []
        for facts in report.splits.values():
            labelled = facts["rows"] - facts["unlabelled"]
            count = facts["labels"].get(label, 0)
            cells.append(f"{count:,} ({count / labelled:.0%})" if labelled else "0")
        table.add_row(Text(shown(label)), *cells)
    if len(names) > MAX_LABELS:
        table.add_row(Text(f"… {len(names) - MAX_LABELS} more"))
    console.print(table)
    _several_labels(console, report)
    console.print()


def _several_labels(console: Console, report: Audit) -> None:
    """Describe how many labels a row of the first split has, and which occur together."""
    from rich.text import Text

    from whet.runs.label_words import per_row, together

    name, facts = next(iter(report.splits.items()))
    if "labels_a_row" in facts:
        console.print(Text(f"Labels per row of {shown(name)}: {per_row(facts['labels_a_row'])}."))
    if facts.get("together"):
        console.print(Text(f"Most often together: {together(facts['together'], 3)}."))


def _findings_table(console: Console, report: Audit) -> None:
    from rich.table import Table
    from rich.text import Text

    if not report.findings:
        console.print(Text("Nothing to complain about."))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", width=7)
    table.add_column("finding", width=14)
    table.add_column("count", justify="right", min_width=6)
    table.add_column("what it is, and what to do", overflow="fold")
    for finding in report.findings:
        table.add_row(
            Text(finding.severity, style=COLOURS[finding.severity]),
            Text(finding.code),
            f"{finding.count:,}",
            Text(_sentence(finding)),
        )
    console.print(table)


def _sentence(finding: Finding) -> str:
    parts = [finding.message]
    if finding.rows:
        by_split: dict[str, list[str]] = {}
        for split, row in finding.rows:
            by_split.setdefault(split, []).append(str(row))
        places = "; ".join(f"{shown(split)} {', '.join(rows)}" for split, rows in by_split.items())
        more = finding.count > len(finding.rows)
        parts.append(f"Rows: {places}{' …' if more else '.'}")
    parts.append(finding.advice)
    return " ".join(part for part in parts if part)


def shown(name: str, most: int = 30) -> str:
    """Return a name from the data as safe text that fits the table."""
    plain = neutral(name)
    return isolated(plain if len(plain) <= most else plain[: most - 1] + "…")
