"""Shows the progress of a run on stderr, and the result on stdout."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import click

from whet.cli.output import guard_output, make_console
from whet.metrics.scores import higher_is_better
from whet.records import Baselines, Evaluation, Record, Start, Step, start_of
from whet.runs import score_words as words
from whet.runs.curves import sparkline
from whet.runs.progress import Progress, duration, progress
from whet.runs.verdict.baselines import largest_record, name_in_full, rows_in_words
from whet.utils.text import neutral, neutral_lines

if TYPE_CHECKING:
    from whet.api import Run
    from whet.training.setup import Job


class Terminal:
    """Shows a live line on a terminal, otherwise one plain line per evaluation."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.records: list[Record] = []
        self.live: Any = None
        self._is_terminal = sys.stderr.isatty()
        self._has_parts = False

    def __enter__(self) -> Terminal:
        if self._is_terminal and not self.quiet:
            from rich.live import Live

            self.live = Live(console=make_console(sys.stderr), refresh_per_second=8, transient=True)
            self.live.start()
            guard_output()  # repeated: rich takes escape sequences in output printed meanwhile for colours
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def echo(self, line: str) -> None:
        """Print a line."""
        if self.quiet:
            return
        line = wrapped(neutral_lines(line), sys.stderr)
        if self.live is not None:
            from rich.text import Text

            self.live.console.print(Text(line))
        else:
            with contextlib.suppress(OSError):  # the terminal is closed; the training continues
                click.echo(line, err=True)

    def on_event(self, event: Any, job: Job) -> None:
        """Handle an event of the training loop."""
        if not isinstance(event, Record):
            return
        self.records.append(event)
        if isinstance(event, Start):
            self._has_parts = event.all_steps > 0
        # A run of several parts has one line per part.
        if isinstance(event, Evaluation) and event.split == "validation" and not self._has_parts:
            self.echo(evaluation_line(event, job.metric, progress(self.records)))
        if self.live is not None:
            from rich.text import Text

            self.live.update(Text(self._line(job.metric)))

    def _line(self, metric: str) -> str:
        now = progress(self.records)
        steps = [record for record in self.records if isinstance(record, Step)]
        losses = [record.loss for record in steps]
        done = round(now.share * 20)
        parts = [f"{'━' * done}{'╌' * (20 - done)} {now.step}/{now.total}"]
        if losses:
            parts.append(f"loss {losses[-1]:.4f} {sparkline(losses, 12)}")
            parts.append(f"{steps[-1].rows_per_second:.0f} rows/s")
        parts.append(f"{duration(now.eta_seconds)} left")
        return "  ".join(parts)


def evaluation_line(record: Evaluation, metric: str, now: Progress) -> str:
    """Return one plain line per evaluation."""
    score = words.score(metric, record.metrics.get(metric, record.loss))
    left = "" if not now.eta_seconds else f"  {duration(now.eta_seconds)} left"
    star = " *" if record.best else ""
    return (
        f"step {record.step:>6}/{now.total}  epoch {record.epoch:5.2f}  loss {record.loss:.4f}  "
        f"{metric} {score}{star}{left}"
    )


def show_result(run: Run) -> None:
    """Show the score and the constant answer's, the run's folder, and how to load the model."""
    summary = run.summary()
    start = start_of(run.records)
    metrics, majority, verdict = summary["metrics"], summary["majority"], summary["verdict"]
    task = start.task if start else ""
    folded = start is not None and start.folds > 0
    for split, prefix in (("held out" if folded else "validation", ""), ("test", "test_")):
        shown = _scores(task, summary["labels"], metrics, prefix, intervals=summary["intervals"])
        if shown:
            _show("held out" if prefix == "" and run.best and run.best.out_of_fold else split, shown)
    if run.baselines:
        for line in baselines_table(largest_record(run.baselines.values())):
            click.echo(neutral_lines(line))
    if majority and (not run.baselines or task == "regression"):  # the table has one of its metrics, or none
        shown = _scores(task, summary["labels"], majority, "", _CONSTANTS[task])
        _show(words.constant(task), f"{shown} ({words.always(task, majority['label'])})")
    said = " ".join(verdict[part] for part in ("sentence", "doubt", "baseline", "advice") if verdict[part])
    _show("verdict", said)
    _show("run", str(run.path))
    if (run.path / "report.html").is_file():
        _show("report", str(run.path / "report.html"))
    click.echo(f"\n{load_snippet(run)}")


def baselines_table(found: Baselines) -> list[str]:
    """Return a table of the model and its baselines, best first, within 80 columns."""
    title = f"{found.metric} on {rows_in_words(found, of=True)}"
    lines = [f"{'beside':<11}{title:<41}  95% interval      p"]
    every: list[dict[str, Any]] = [{"name": "fine-tuned", "value": found.value, "interval": found.interval}]
    every += found.baselines
    for each in sorted(every, key=lambda one: one["value"], reverse=higher_is_better(found.metric)):
        fewer = f", {each['trained_on']:,} rows" if each.get("trained_on") else ""
        low_high = "{:.4f} to {:.4f}".format(*each["interval"]) if each["interval"] else ""
        p_value = f"{each['p_value']:.2g}" if "p_value" in each else ""
        lines.append(
            f"{'':<11}{name_in_full(found, each['name']) + fewer:<34}{each['value']:>7.4f}"
            f"  {low_high:<16}  {p_value}".rstrip()
        )
    return [*lines, *(wrapped(f"{'':<11}left out: {why}", sys.stdout, indent=13) for why in found.left_out)]


def _show(name: str, said: str) -> None:
    click.echo(wrapped(f"{name:<11}{neutral(said)}", sys.stdout, indent=11))


def wrapped(line: str, stream: TextIO, indent: int = 2) -> str:
    """Wrap the line between words to fit the terminal, with the rest indented; unchanged if the stream is no
    terminal.

    Long words, such as paths, are never broken, so that they can be copied.
    """
    if not stream.isatty():
        return line
    return textwrap.fill(
        line, columns(stream), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def shortened(name: str, room: int) -> str:
    """Shorten a name in its middle: the end distinguishes runs (mrpc-001, mrpc-002)."""
    name = neutral(name)
    return name if len(name) <= room else name[: room - 5] + "…" + name[-4:]


def columns(stream: TextIO) -> int:
    """Return the width of the stream's own terminal, since standard output may be redirected."""
    if "COLUMNS" not in os.environ:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return os.get_terminal_size(stream.fileno()).columns or 80
    return shutil.get_terminal_size().columns


def load_snippet(run: Run) -> str:
    """Return code that loads this run's model, with a pair if the model reads pairs."""
    columns = run.folder.data.get("columns", {})
    arguments = '"A text.", "Another one."' if columns.get("pair") else '"A text."'
    return f"import whet\nmodel = whet.load({str(run.path)!r})\nprint(model.predict({arguments}))"


_SHOWN = {
    "binary": ("accuracy", "f1"),
    "multiclass": ("accuracy", "macro_f1"),
    "multilabel": ("micro_f1", "macro_f1"),
    "regression": ("pearson", "mse", "mae"),
}
_CONSTANTS = {**{task: names[:1] for task, names in _SHOWN.items()}, "regression": ("mse", "mae")}
"""Metrics shown for a constant answer; its correlations are zero."""


def _scores(
    task: str,
    labels: Sequence[str],
    metrics: Mapping[str, Any],
    prefix: str,
    names: Sequence[str] | None = None,
    intervals: Mapping[str, Sequence[float]] | None = None,
) -> str:
    def edges(name: str) -> str:
        found = (intervals or {}).get(prefix + name)
        return "" if found is None else f" ({words.score(name, found[0])} to {words.score(name, found[1])})"

    known = [name for name in names or _SHOWN.get(task, ()) if prefix + name in metrics]
    return ", ".join(
        f"{words.metric_of(name, task, labels)} {words.score(name, metrics[prefix + name])}{edges(name)}"
        for name in known
    )
