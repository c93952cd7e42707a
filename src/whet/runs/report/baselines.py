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


def _table(found: Baselines) -> BaselineTable:
    every = [{"name": "fine-tuned", "value": found.value, "interval": found.interval}, *found.baselines]
    every.sort(key=lambda each: each["value"], reverse=higher_is_better(found.metric))
    return BaselineTable(
        title=f"{metric_words(found.metric)} on {rows_in_words(found, of=True)}",
        lines=[_line(found, each) for each in every],
        left_out=found.left_out,
    )


def _line(found: Baselines, each: dict[str, Any]) -> Line:
    low_high = " to ".join(score_text(found.metric, edge) for edge in each["interval"] or ())
    taken = each.get("trained_on")
    return Line(
        name=name_in_full(found, each["name"]),
        value=score_text(found.metric, each["value"]),
        interval=low_high,
        test=_test(found, each) if "p_value" in each else "",
        trained_on=f"trained on {taken:,} of {found.train_rows or 0:,} rows" if taken else "",
        is_model="p_value" not in each,
    )


def _test(found: Baselines, each: dict[str, Any]) -> str:
    told = ("better" if is_ahead(found, each) else "worse") if is_visible(each) else "cannot be told apart"
    return f"{told} (p = {each['p_value']:.2g})"
