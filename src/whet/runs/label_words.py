"""Describes several labels per row: their number, and which occur together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def per_row(found: Mapping[str, Any]) -> str:
    """`1.6 on average, at most 4; 12% of the rows have none`."""
    none = f"{found['none']:.0%} of the rows have none" if found["none"] else "every row has one"
    return f"{found['mean']:.1f} on average, at most {found['most']}; {none}"


def together(pairs: Sequence[Mapping[str, Any]], most: int = 5) -> str:
    """`'food' and 'sport' (40 rows, 80% of those with 'food')`."""
    return ", ".join(
        f"{pair['label']!r} and {pair['beside']!r} ({pair['rows']:,} rows, {pair['share']:.0%} "
        f"of those with {pair['label']!r})"
        for pair in pairs[:most]
    )


def facts_of(split: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the same as table rows, from the audit of a split; empty with one label per row."""
    if "labels_a_row" not in split:
        return []
    facts = [("labels per row", per_row(split["labels_a_row"]))]
    return [*facts, ("labels most often together", together(split["together"]))] if split["together"] else facts
