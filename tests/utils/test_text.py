"""What steers, reorders or hides is replaced; what people write stays as it is."""

from __future__ import annotations

import json
import unicodedata

import pytest

from whet.utils.text import isolated, json_text, markdown_escaped, neutral, neutral_lines, neutral_values

READABLE = [
    "plain words, 100% of them",
    "déjà vu, Łódź, naïve, e\u0301",
    "👩‍💻 👨‍👩‍👧‍👦 ❤️‍🔥 🏳️‍🌈 👍🏽 1️⃣ ™️ ✔︎ 🇫🇷",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "مرحبا بالعالم",
    "می\u200cخواهم",
    "שלום \u200f(עולם)\u200f",
    "ภาษา\u200bไทย",
    "ශ්‍රී ලංකා",
    "क्‍ष हिन्दी",
    "中文，日本語、한국어 葛\U000e0100",
    "ᠮᠣᠩᠭᠣᠯ\u180bᠠ",
    "a\u00a0b\u3000c",
    "\u2068مرحبا\u2069",
    "\U0001fae8",  # an emoji younger than this Python's tables
]
DECEIVING = {
    "ESC": "\x1b[31m",
    "BEL": "\x07",
    "NUL": "\x00",
    "DEL": "\x7f",
    "backspace": "good\x08\x08bad",
    "carriage return": "bad\rgood",
    "C1 CSI": "\x9b2J",
    "C1 OSC": "\x9d0;title\x9c",
    "next line": "\x85",
    "OSC 8": "\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\",
    "OSC 52": "\x1b]52;c;ZWNobw==\x07",
    "right-to-left override": "txt\u202egnp",
    "embedding": "\u202ba\u202c",
    "isolates that stay open": "a\u2067b",
    "an isolate around Latin letters": "\u2068good\u2069",
    "an end without a beginning": "a\u2069b",
    "a mark in Latin text": "good\u200f",
    "zero-width space": "go\u200bod",
    "zero-width joiner": "go\u200dod",
    "zero-width non-joiner": "go\u200cod",
    "word joiner": "go\u2060od",
    "byte order mark": "\ufeffgood",
    "soft hyphen": "go\u00adod",
    "variation selector": "good\ufe0f",
    "selectors one after another": "☺\ufe0f\ufe0f",
    "tags": "good\U000e0041\U000e0042",
    "Hangul filler": "\u3164",
    "joiners one after another": "می\u200c\u200cخ",
    "a joiner at the end": "می\u200c",
    "line separator": "a\u2028b",
    "lone surrogate": "\ud800",
}


@pytest.mark.parametrize("text", READABLE)
def test_what_people_write_stays(text: str) -> None:
    assert neutral(text) == text == neutral_lines(text)


@pytest.mark.parametrize("name", DECEIVING)
def test_what_steers_or_hides_is_replaced(name: str) -> None:
    shown = neutral(DECEIVING[name])
    assert "\ufffd" in shown
    assert len(shown) == len(DECEIVING[name])
    assert not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in shown)
    assert neutral(shown) == shown


def test_lines_keep_their_ends_and_one_line_does_not() -> None:
    assert neutral_lines("a\n\tb\x1b") == "a\n\tb\ufffd"
    assert neutral("a\n\tb") == "a\ufffd\ufffdb"


def test_an_isolate_that_holds_an_override_is_none() -> None:
    assert neutral("\u2068مر\u202eحبا\u2069") == "\ufffdمر\ufffdحبا\ufffd"


def test_right_to_left_text_is_isolated_once() -> None:
    assert isolated("مرحبا") == "\u2068مرحبا\u2069" == isolated(isolated("مرحبا"))
    assert isolated("good") == "good"


def test_values_are_neutral_at_any_depth() -> None:
    assert neutral_values({"\x1b": ["\x07", 1, ("\r",)]}) == {"\ufffd": ["\ufffd", 1, ["\ufffd"]]}


@pytest.mark.parametrize("text", [*READABLE, *DECEIVING.values(), "\U000e0041"])
def test_json_loses_nothing_and_steers_nothing(text: str) -> None:
    written = json_text({text: [text]}, indent=1)
    assert json.loads(written) == {text: [text]}
    assert not any(unicodedata.category(char) in ("Cc", "Cs") for char in written if char != "\n")
    assert "\u202e" not in written


def test_markdown_shows_markup_as_it_is_written() -> None:
    assert markdown_escaped("![x](http://e.org)\n<b>\x1b") == "\\!\\[x\\]\\(http://e.org\\) &lt;b&gt;\ufffd"


def test_hostile_length_costs_no_more_than_its_length() -> None:
    for text in ("\u2068" * 300_000, "א\u200f" * 150_000, "\u200d" * 300_000, "\U0001f3f4" * 300_000):
        assert len(neutral(text)) == len(text)
