"""Tables of the model and its baselines on the same rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from whet.metrics.scores import higher_is_better
from whet.records import Baselines, Record
from whet.runs.report.charts import metric_words
from whet.runs.score_words import score_text
from whet.runs.verdict.baselines import is_ahead, is_visible, name_in_full, rows_in_words


@dataclass(frozen=True, kw_only=True)
class Line:
    """One model or baseline."""

    name: str
    value: str
    interval: str
    test: str
    """The comparison with the model, in words; empty for the model itself."""
    trained_on: str
    is_model: bool = False


@dataclass(frozen=True, kw_only=True)
class BaselineTable:
    """One split."""

    title: str
    lines: list[Line]
    """Best first."""
    left_out: list[str]


def baseline_tables(records: Iterable[Record]) -> list[BaselineTable]:
    """Return one table per split with baselines."""
    return [_table(record) for record in records if isinstance(record, Baselines)]


def _table(record: Baselines) -> BaselineTable:
    every = [{"name": "fine-tuned", "value": record.value, "interval": record.interval}, *record.baselines]
    every.sort(key=lambda answer: answer["value"], reverse=higher_is_better(record.metric))
    return BaselineTable(
        title=f"{metric_words(record.metric)} on {rows_in_words(record, of=True)}",
        lines=[_line(record, answer) for answer in every],
        left_out=record.left_out,
    )


def _line(record: Baselines, answer: dict[str, Any]) -> Line:
    low_high = " to ".join(score_text(record.metric, edge) for edge in answer["interval"] or ())
    taken = answer.get("trained_on")
    return Line(
        name=name_in_full(record, answer["name"]),
        value=score_text(record.metric, answer["value"]),
        interval=low_high,
        test=_test(record, answer) if "p_value" in answer else "",
        trained_on=f"trained on {taken:,} of {record.train_rows or 0:,} rows" if taken else "",
        is_model="p_value" not in answer,
    )


def _test(record: Baselines, answer: dict[str, Any]) -> str:
    told = ("better" if is_ahead(record, answer) else "worse") if is_visible(answer) else "cannot be told apart"
    return f"{told} (p = {answer['p_value']:.2g})"
