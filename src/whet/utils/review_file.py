"""The file of reviewed labels, a row per decision: `whet labels` writes it, people edit it, training reads it."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping

from whet.utils.text import harmless_cell, neutral

ROW, TEXT, PAIR, GIVEN, LIKELY = "row", "text", "pair", "given", "likely"
PROBABILITY, DECISION, CHECK = "probability", "decision", "check"
COLUMNS = (ROW, TEXT, PAIR, GIVEN, LIKELY, PROBABILITY, DECISION, CHECK)
ACCEPT, KEEP, SKIP = "accept", "keep", "skip"
DECISIONS = (ACCEPT, KEEP, SKIP)
"""Take the likely label; keep the given one; decide later."""


def text_check(text: str, pair: str | None) -> str:
    """A hash of the row's exact texts. The prefix keeps spreadsheets from reading it as a number."""
    content = text.encode("utf-8", "replace") + b"\0" + (pair or "").encode("utf-8", "replace")
    return "text-" + hashlib.blake2b(content, digest_size=8).hexdigest()


def cell(value: object) -> str:
    """The value on one line, harmless to a terminal and to a spreadsheet."""
    return harmless_cell(neutral(" ".join(str(value).split())))


def csv_line(cells: Mapping[str, object]) -> str:
    """One row of the file as one line; texts lose their line breaks."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow([cell(cells.get(name, "")) for name in COLUMNS])
    return out.getvalue()


def header_line() -> str:
    return ",".join(COLUMNS) + "\n"
