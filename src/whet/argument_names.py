"""Translates flags in messages to Python arguments.

in_python("Try --epochs 5, or --drop-empty.") == "Try epochs=5, or drop_empty=True."
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

_VALUE = r"""'[^']*'|"[^"]*"|(?:[^\s,;()]|,(?=\S))*[^\s,;().]"""
_FLAG = re.compile(rf"""(?<![\w-])--([a-z][a-z-]*)(?: (?=['"]|[^\s\-(]))?({_VALUE})?""")
_PROSE = re.compile(
    "and|are|can|do|for|gives|has|if|in|is|means|names?|of|on|or|out|rows|says|splits|takes|than|to|was|where|while|"
    "with|×"
)
"""Words that may follow a flag without being its value."""
_ARGUMENTS: dict[str, tuple[str, Any]] = {"accept-changes": ("accept_changes", bool)}
"""Flags without dashes, with their argument and its type."""
_TELLERS: list[Callable[[], Mapping[str, tuple[str, Any]]]] = []


def know_arguments(flags: Callable[[], Mapping[str, tuple[str, Any]]]) -> None:
    """Register a function that returns arguments and types by flag; called for the first message."""
    _TELLERS.append(flags)


def in_python(text: str) -> str:
    """Return the text with every flag of a setting written as a keyword argument; other flags stay."""
    while _TELLERS:
        _ARGUMENTS.update(_TELLERS.pop()())
    return _FLAG.sub(_argument, text)


def _argument(found: re.Match[str]) -> str:
    whole, value = found[0], found[2] or ""
    name, kind = _ARGUMENTS.get(found[1], ("", None))
    if kind is None:
        return whole
    comma = "," if found.string.startswith(" --", found.end()) else ""
    if kind is bool:
        return f"{name}=True{whole.removeprefix('--' + found[1])}{comma}"
    written = _written(value, kind) if value else None
    if written is None:
        return f"{name} {value}".rstrip() + comma
    return f"{name}={written}{comma}"


def _written(value: str, hint: Any) -> str | None:
    """Return the value in Python's syntax; None if the word after the flag is no value."""
    if _PROSE.fullmatch(value):
        return None
    if get_origin(hint) is Literal:
        return repr(value) if value in get_args(hint) else None
    kinds = [each for each in (get_args(hint) or (hint,)) if each is not type(None)]
    if int in kinds or float in kinds:
        return value if value[0].isdigit() or value.isupper() else None
    return value if value[0] in "'\"" else repr(value)
