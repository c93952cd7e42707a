"""Reads the input of `predict`: one text or many, single or in pairs, or a table with text columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from whet.config import DataConfig
from whet.data.columns import choose_columns, column_kind
from whet.data.readers.python_objects import is_split_map, is_table, read_object, values_of
from whet.errors import DataError, UsageError


@dataclass(frozen=True)
class GivenTexts:
    """Texts in input order."""

    first: list[str]
    second: list[str] | None
    single: bool = False
    """Whether it was one text or one pair instead of a list."""


def given_texts(texts: Any, pairs: Any = None, *, trained: Mapping[str, str | None] | None = None) -> GivenTexts:
    """Return the texts of any input. `trained` names the columns of the training data, if known."""
    if is_split_map(texts):
        if len(texts) > 1:
            raise UsageError(f"predict was given the splits {', '.join(map(str, texts))}.", "Give one of them.")
        texts = next(iter(texts.values()))
    if is_table(texts):
        if pairs is not None:
            raise UsageError("predict was given a table and pairs.", "Give the table alone, or two of its columns.")
        return _from_table(texts, trained or {})
    if isinstance(texts, str) and (pairs is None or isinstance(pairs, str)):
        return GivenTexts([texts], None if pairs is None else [pairs], single=True)
    if pairs is None and _is_one_pair(texts, trained):
        return GivenTexts([texts[0]], [texts[1]], single=True)
    return _from_columns(texts, pairs)


def _is_one_pair(texts: Any, trained: Mapping[str, str | None] | None) -> bool:
    """Return whether this is a pair: ("A text.", "Another one.") is one for a model of pairs, else two texts."""
    reads_pairs = bool((trained or {}).get("pair"))
    return reads_pairs and isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(t, str) for t in texts)


def _from_table(table: Any, trained: Mapping[str, str | None]) -> GivenTexts:
    """Return the columns of the training data; if unknown, those that look like texts."""
    split = read_object(table)
    config = DataConfig(text=trained.get("text"), pair=trained.get("pair"))
    try:
        columns = choose_columns(split, config, labelled=False)
        for name in columns.texts:
            if (kind := column_kind(split.schema.field(name).type)) != "text":
                raise split.error(f"the column holds values of the kind {kind!r}, not texts.", column=name)
    except DataError as error:
        listed = ", ".join(split.columns[:20])
        error.hint = f"Its columns are {listed}; give the one that is meant: predict(data['NAME'])."
        raise
    found: dict[str, list[str]] = {name: [] for name in columns.texts}
    for batch in split.read(list(columns.texts)):
        for name in columns.texts:
            found[name] += batch.column(name).to_pylist()
    first, *second = (_checked(found[name]) for name in columns.texts)
    return GivenTexts(first, second[0] if second else None)


def _from_columns(texts: Any, pairs: Any) -> GivenTexts:
    rows = _listed(texts, "texts")
    if pairs is None and rows and isinstance(rows[0], tuple | list):
        for index, row in enumerate(rows):
            if not isinstance(row, tuple | list) or len(row) != 2:
                raise UsageError(f"Row {index} is {_short(row)}, not a (text, pair).", "Give two texts in each row.")
        rows, pairs = [row[0] for row in rows], [row[1] for row in rows]
    if pairs is None:
        return GivenTexts(_checked(rows), None)
    others = _listed(pairs, "pairs")
    if len(others) != len(rows):
        raise UsageError(
            f"There are {len(rows)} texts and {len(others)} pairs.", "Give as many of one as of the other."
        )
    return GivenTexts(_checked(rows), _checked(others))


def _checked(texts: list[Any]) -> list[str]:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise UsageError(f"Text {index} is {_short(text)}, which is not a text.")
    return texts


def _listed(values: Any, name: str) -> list[Any]:
    """Return texts from anything that holds several: a list, an array, a column; not from a text or a mapping."""
    if isinstance(values, str | bytes | Mapping | set | frozenset) or not isinstance(values, Iterable):
        raise UsageError(
            f"predict was given {_short(values)} as {name}.", "Give a text, a list of texts, or a table with them."
        )
    return values_of(values)


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
