"""Tables in Markdown, and numbers in their cells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def to_measure(name: str) -> str:
    """The text in place of a table whose benchmark has left no results."""
    return f"`python benchmarks/{name}.py` measures it.\n"


def ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"


def times(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"
