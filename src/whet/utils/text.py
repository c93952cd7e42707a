"""Makes text from outside safe to print.

Labels, texts, file names, column names, error messages of libraries and records of a copied run may hold characters
that control a terminal, reorder a line or are invisible. `neutral` replaces exactly those, one by one, with U+FFFD.
It keeps ordinary writing: emoji and their joiners, accents, Arabic, Hebrew, Thai, Indic scripts, Chinese.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from unicodedata import bidirectional, category

Echo = Callable[[str], None]
"""Shows one line to the user."""
SHOWN_CHARACTERS = 300
"""The longest part of a text that is stored or shown for one row."""
REPLACED = "\ufffd"
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
ISOLATE, END_OF_ISOLATE = "\u2068", "\u2069"

# All characters that may have to be replaced. Most texts hold none, and one search is enough.
_SUSPECT = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: ESC, BEL, CR, CSI, OSC
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\ud800-\udfff"  # surrogates, which no encoding can write
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# The flags of England, Scotland, Wales: a black flag, letters as tags, the end tag.
_FLAG = "\U0001f3f4[\U000e0061-\U000e007a\U000e0030-\U000e0039]{3,6}\U000e007f"
# An isolate that is closed on its line, without reordering characters inside, cannot affect the rest of the line.
_CLOSED = f"{ISOLATE}[^{ISOLATE}{END_OF_ISOLATE}\u2066\u2067\u202a-\u202e\n\r\u2028\u2029]*{END_OF_ISOLATE}"
_WHOLE = re.compile(f"{_FLAG}|{_CLOSED}")

_DIRECTION_MARKS = frozenset("\u200e\u200f\u061c")
# Scripts whose letters join: Hebrew to Sinhala, Myanmar, Khmer, Mongolian and their extensions.
_JOINING = re.compile(
    "[\u0590-\u109f\u1780-\u18af\u1900-\u1aaf\u1b00-\u1bff\ua800-\uaaff\uabc0-\uabff\ufb1d-\ufdff\ufe70-\ufefc"
    "\U00010a00-\U00011fff\U0001e900-\U0001e95f]"
)
# Scripts without spaces between words: Thai, Lao, Tibetan, Myanmar, Khmer, Tai.
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u1950-\u1aaf]")
_KEYCAP = re.compile("[0-9#*]")
_RIGHT_TO_LEFT = frozenset({"R", "AL"})


def neutral(text: str) -> str:
    """Make one safe line: no character controls a terminal, breaks the line, reorders it or is invisible. The length
    stays."""
    if text.isascii() and text.isprintable():
        return text
    return _neutral(text, "")


def neutral_lines(text: str) -> str:
    """Make text of several lines safe; line feeds and tabs stay."""
    return _neutral(text, "\n\t") if _SUSPECT.search(text) else text


def neutral_values(value: Any) -> Any:
    """Make every text in lists and dictionaries safe, keys included."""
    if isinstance(value, str):
        return neutral_lines(value)
    if isinstance(value, dict):
        return {neutral_values(key): neutral_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [neutral_values(item) for item in value]
    return value


def isolated(text: str) -> str:
    """Make one safe line that does not reorder the numbers next to it, as Arabic text would."""
    shown = neutral(text)
    return f"{ISOLATE}{shown}{END_OF_ISOLATE}" if _is_right_to_left(shown) and ISOLATE not in shown else shown


def shorten(text: str, most: int = SHOWN_CHARACTERS) -> str:
    """The text, or its beginning with an ellipsis if it is longer than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def json_text(value: Any, **options: Any) -> str:
    """JSON for programs, also on a terminal: nothing is replaced, and control characters are written as `\\u001b`."""
    return _SUSPECT.sub(_escaped, json.dumps(value, ensure_ascii=False, **options))


def markdown_escaped(text: str) -> str:
    """Escape text so that Markdown shows it unchanged: no markup, no HTML, no mentions, one line."""
    one_line = neutral(" ".join(text.split()))
    entities = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "#": "&#35;", "|": "&#124;"}
    return "".join(entities.get(char) or (f"\\{char}" if char in "\\`*_[]()~$!{}" else char) for char in one_line)


def harmless_cell(value: str) -> str:
    """Return the value, with a quote in front if a spreadsheet would run it as a formula. Numbers stay numbers."""
    if not value.startswith(FORMULA_STARTS):
        return value
    try:
        float(value)
    except ValueError:
        return "'" + value
    return value


def _neutral(text: str, kept: str) -> str:
    whole = [match.span() for match in _WHOLE.finditer(text)]
    safe: set[int] = set()
    for start, end in whole:
        if text[start] != ISOLATE:
            safe.update(range(start, end))
        elif _is_right_to_left(text[start:end]):
            safe.update((start, end - 1))

    right_to_left = _is_right_to_left(text)

    def replace(match: re.Match[str]) -> str:
        place, char = match.start(), match.group()
        if char in kept or place in safe:
            return char
        before, after = text[max(0, place - 1) : place], text[place + 1 : place + 2]
        if char in _DIRECTION_MARKS:
            return char if right_to_left and before not in _DIRECTION_MARKS else REPLACED
        return char if _belongs(char, before, after) else REPLACED

    return _SUSPECT.sub(replace, text)


def _belongs(char: str, before: str, after: str) -> bool:
    """Return whether an invisible character changes the shape of its neighbours, as in real words."""
    if char == "\u200d":  # joins emoji and letters of Indic and Arabic scripts, also at the end of a word
        return _is_joining(before) or (_is_pictorial(before) and _is_pictorial(after))
    if char == "\u200c":  # keeps two letters of a word from joining
        return _is_joining(before) and _is_joining(after)
    if char == "\u200b":  # a possible line break in scripts without spaces
        return _is_unspaced(before) and _is_unspaced(after)
    if "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef":
        return _has_variants(before) or (bool(_KEYCAP.fullmatch(before)) and after == "\u20e3")
    if "\u180b" <= char <= "\u180d" or char == "\u180f":
        return "\u1820" <= before <= "\u18aa"
    return False


def _is_joining(char: str) -> bool:
    return bool(_JOINING.fullmatch(char)) and category(char)[0] in "LM"


def _is_pictorial(char: str) -> bool:
    return char == "\ufe0f" or (char >= "\u2190" and category(char) in ("So", "Sk", "Sm", "Cn"))


def _is_unspaced(char: str) -> bool:
    return bool(_UNSPACED.fullmatch(char)) and category(char)[0] in "LM"


def _has_variants(char: str) -> bool:
    """Return whether the character has variants: symbols, emoji, Chinese and other letters, but not Latin."""
    if not char or char.isspace():
        return False
    kind = category(char)
    return char in "©®‼⁉ℹ™" or (char >= "\u2000" and kind in ("So", "Sm", "Sk", "Po", "Pd", "Cn", "Lo"))


def _is_right_to_left(text: str) -> bool:
    return not text.isascii() and any(
        bidirectional(char) in _RIGHT_TO_LEFT and char not in _DIRECTION_MARKS for char in text
    )


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    if match.group() == "\n":  # a line feed between values; inside a value it is already escaped
        return "\n"
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
