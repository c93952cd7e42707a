"""CSV that a spreadsheet opens without running it."""

from __future__ import annotations

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def harmless_cell(value: str) -> str:
    """The value, behind a quote where a spreadsheet would take it for a formula. Numbers stay numbers."""
    if not value.startswith(FORMULA_STARTS):
        return value
    try:
        float(value)
    except ValueError:
        return "'" + value
    return value
