"""Repairs damaged texts: UTF-8 read as Latin-1, HTML entities, invisible characters."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import unescape
from html.entities import html5
from typing import Any

DAMAGES = {
    "mojibake": "UTF-8 that was read as Latin-1 or Windows-1252",
    "html-entities": "Characters that are written as HTML entities",
    "zero-width": "Characters that take no room",
}
EXCERPT = 30
# The first byte of a UTF-8 character read as Latin-1, followed by a continuation byte read as Windows-1252.
_MOJIBAKE = "[\u00c2-\u00f4][\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]"
_ENTITY = "&(#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
# Joiners (U+200C and U+200D) stay: Persian, Indic scripts and emoji need them.
_INVISIBLE = "[\u00ad\u200b\u2060\ufeff]"
_PATTERNS = {"mojibake": _MOJIBAKE, "html-entities": _ENTITY, "zero-width": _INVISIBLE}
_COMPILED = {kind: re.compile(pattern) for kind, pattern in _PATTERNS.items()}


@dataclass
class Damage:
    """The rows of a split with one kind of damage."""

    rows: set[int] = field(default_factory=set)
    example: tuple[str, str] = ("", "")
    """The damaged text of the first row, and its repair."""


def repair(text: str) -> str:
    """Return the text without these damages; repairing it again changes nothing."""
    while True:
        better = text
        for kind in DAMAGES:
            better = _REPAIRS[kind](better)
        if better == text:
            return text
        text = better


def repaired(texts: Any) -> tuple[Any, Any]:
    """Return an Arrow array with repaired texts, and the indices of the changed ones."""
    import numpy as np
    import pyarrow as pa

    suspects = np.unique(np.concatenate([_suspects(texts, kind) for kind in DAMAGES]))
    if not len(suspects):
        return texts, suspects
    before = texts.take(pa.array(suspects)).to_pylist()
    after = [repair(text) for text in before]
    changed = np.array([old != new for old, new in zip(before, after, strict=True)], bool)
    if not changed.any():
        return texts, suspects[:0]
    replaced = texts.to_numpy(zero_copy_only=False)
    replaced[suspects] = after
    return pa.array(replaced, texts.type, from_pandas=True), suspects[changed]


def find_damage(texts: Any, rows: Any, found: dict[str, Damage]) -> None:
    """Add the repairable rows of these texts, by kind."""
    for kind in DAMAGES:
        suspects = _suspects(texts, kind)
        for place, text in zip(suspects.tolist(), texts.take(suspects).to_pylist(), strict=True):
            better = _REPAIRS[kind](text)
            if better == text:
                continue
            found.setdefault(kind, Damage(example=_excerpts(text, better))).rows.add(int(rows[place]))


def _suspects(texts: Any, kind: str) -> Any:
    """Return the indices of texts that may be damaged: one fast search, so that clean texts cost next to nothing."""
    import numpy as np
    import pyarrow.compute as pc

    if kind != "html-entities" and pc.all(pc.string_is_ascii(texts)).as_py():
        return np.zeros(0, np.int64)
    found = pc.match_substring_regex(texts, _PATTERNS[kind])
    return np.flatnonzero(pc.fill_null(found, False).to_numpy(zero_copy_only=False))


def _excerpts(before: str, after: str) -> tuple[str, str]:
    """Return the first differing word of two texts."""
    same = next(
        (n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(map(len, (before, after)))
    )
    start = max(before.rfind(" ", 0, same) + 1, same - EXCERPT // 2)
    return _word(before, start, same), _word(after, start, same)


def _word(text: str, start: int, inside: int) -> str:
    end = text.find(" ", inside)
    return text[start : min(end if end >= 0 else len(text), start + EXCERPT)]


def _without_mojibake(text: str) -> str:
    if not _COMPILED["mojibake"].search(text):
        return text
    from ftfy import fix_encoding

    return str(fix_encoding(text))


def _without_entities(text: str) -> str:
    return _COMPILED["html-entities"].sub(_character, text)


def _character(found: re.Match[str]) -> str:
    """Return the character of an entity; unknown names stay."""
    return unescape(found[0]) if found[1].startswith("#") or f"{found[1]};" in html5 else found[0]


def _without_invisible(text: str) -> str:
    return _COMPILED["zero-width"].sub("", text)


_REPAIRS: dict[str, Callable[[str], str]] = {
    "mojibake": _without_mojibake,
    "html-entities": _without_entities,
    "zero-width": _without_invisible,
}
