"""Curves and a table in a notebook: redrawn in place while a run goes on, and kept when the notebook is saved.

    view = NotebookView()
    for event in training:
        view.on_event(event)
    view.close()

What is shown is plain HTML and SVG without scripts, so it looks the same when the notebook is opened again, in
any theme. IPython is imported only to show it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from whet.records import End, Evaluation, Finding, Record, Start, replay
from whet.runs.curves import Curves, curves
from whet.runs.progress import duration, progress
from whet.runs.report.charts import charts_of, metric_words
from whet.runs.report.svg import escape, render

SECONDS_BETWEEN = 0.5
"""Seconds between two drawings, each of which takes milliseconds of the training process."""
SHOWN_EVALUATIONS = 30
_POINTS = 400

_CELL = "style='text-align:right;padding:3px 12px 3px 0;font-variant-numeric:tabular-nums'"


def in_notebook() -> bool:
    """Return whether there is a notebook to draw in; a plain IPython prompt is none."""
    import sys

    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


class NotebookView:
    """One output cell that follows a run."""

    def __init__(self, earlier: Sequence[Record] = ()) -> None:
        self.records: list[Record] = list(earlier)
        """`earlier` are the records of a resumed run."""
        self._handle: Any = None
        self._drawn = 0.0

    def on_event(self, event: Any, job: Any = None) -> None:
        """Handle an event of the training loop; events that are no records are ignored."""
        if not isinstance(event, Record):
            return
        self.records.append(event)
        due = time.monotonic() - self._drawn >= SECONDS_BETWEEN
        if due or isinstance(event, Start | Evaluation | End):
            self.draw()

    def draw(self) -> None:
        """Show the current state of the run in place of the previous one."""
        from IPython.display import display

        shown = Figure(list(replay(self.records)))
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)
        self._drawn = time.monotonic()

    def close(self) -> None:
        """Show the final state, which the saved notebook keeps."""
        if self.records:
            self.draw()


class Figure:
    """Records as shown by a notebook: curves, the verdict, one row per evaluation."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)
        self.curves = curves(self.records)

    def _repr_html_(self) -> str:
        return (
            "<div>"
            + "".join([*_head(self.records), _charts(self.curves), _table(self.records, self.curves)])
            + "</div>"
        )

    def __repr__(self) -> str:
        """Return the evaluations as plain lines, for viewers without HTML."""
        lines = [_plain(record, self.curves) for record in _evaluations(self.records, self.curves)]
        return "\n".join(lines) or "no evaluation yet"


def _head(records: list[Record]) -> list[str]:
    now = progress(records)
    left = f", {duration(now.eta_seconds)} left" if now.eta_seconds else ""
    state = f" ({now.ended})" if now.ended else left
    parts = [f"<div><b>step {now.step:,} of {now.total:,}</b>, {duration(now.seconds)}{escape(state)}</div>"]
    sentence = _verdict(records)
    if sentence:
        parts.append(f"<div style='margin:4px 0'>{escape(sentence)}</div>")
    return parts


def _verdict(records: list[Record]) -> str:
    """Return the verdict: computed at the end, before that the last recorded one."""
    if any(isinstance(record, End) for record in records):
        from whet.runs.verdict.judge import verdict_of

        verdict = verdict_of(records)
        return " ".join(part for part in (verdict.sentence, verdict.doubt, verdict.baseline, verdict.advice) if part)
    said = [record.sentence for record in records if isinstance(record, Finding) and record.about == "verdict"]
    return said[-1] if said else ""


def _charts(seen: Curves) -> str:
    drawn = [render(chart, 560, 260) for chart in charts_of(seen, _POINTS) if not chart.minor][:2]
    boxes = "".join(f"<div style='flex:1 1 420px;max-width:620px'>{svg}</div>" for svg in drawn)
    return f"<div style='display:flex;flex-wrap:wrap;gap:12px'>{boxes}</div>"


def _table(records: list[Record], seen: Curves) -> str:
    rows = _evaluations(records, seen)
    if not rows:
        return ""
    metrics = list(rows[-1].metrics)
    best = max((record.step for record in rows if record.best), default=None)
    heads = ["step", "epoch", "training loss", f"{seen.split} loss", *map(metric_words, metrics)]
    body = []
    for record in rows[-SHOWN_EVALUATIONS:]:
        probe = "–" if record.probe_loss is None else f"{record.probe_loss:.4f}"
        values = [f"{record.metrics[name]:.4f}" if name in record.metrics else "–" for name in metrics]
        cells = [f"{record.step:,}", f"{record.epoch:.2f}", probe, f"{record.loss:.4f}", *values]
        inner = "".join(f"<td {_CELL}>{'<b>' + cell + '</b>' if record.step == best else cell}</td>" for cell in cells)
        body.append(f"<tr>{inner}</tr>")
    head = "".join(f"<th {_CELL}>{escape(name)}</th>" for name in heads)
    earlier = len(rows) - SHOWN_EVALUATIONS
    more = f"<div>{earlier} earlier evaluations are not shown.</div>" if earlier > 0 else ""
    return f"<table style='border-collapse:collapse;margin-top:8px'><tr>{head}</tr>{''.join(body)}</table>{more}"


def _plain(record: Evaluation, seen: Curves) -> str:
    scores = "  ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
    return f"step {record.step}  {seen.split} loss {record.loss:.4f}  {scores}{'  *' if record.best else ''}"


def _evaluations(records: list[Record], seen: Curves) -> list[Evaluation]:
    return [record for record in records if isinstance(record, Evaluation) and record.split == seen.split]
