"""What passes the doors of the command line."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.text import Text

from whet.cli.output import NeutralStream, guard_output, guarded_output, make_console, unguarded

STEERING = "\x1b[31m\x07\x9b\x1b]8;;http://e.org\x1b\\\u202e\r\x08"


def test_rich_shows_text_and_no_escape_sequence_or_link_of_it() -> None:
    stream = io.StringIO()
    console = make_console(NeutralStream(stream), force_terminal=True, width=200)
    console.print(Text(STEERING, style="red"))
    console.print(f"[link=http://e.org]x[/link] {STEERING}")
    console.print(Text("x", style="link http://e.org"))
    written = stream.getvalue()
    assert written.startswith("\x1b[31m")  # the style, which is ours
    assert "[link=http://e.org]x[/link]" in written
    for ours in ("\x1b[31m", "\x1b[0m"):
        written = written.replace(ours, "")
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r", "\x08"} & set(written)


def test_a_stream_is_itself_in_all_but_writing() -> None:
    stream = io.StringIO()
    door = NeutralStream(stream)
    door.writelines(["a\x1b\n", "b\ud800"])
    assert stream.getvalue() == "a\ufffd\nb\ufffd"
    assert door.isatty() is False
    assert unguarded(door) is stream  # type: ignore[arg-type]


def test_characters_that_an_encoding_lacks_are_no_failure() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    NeutralStream(stream).write("é \x1b ok")
    stream.flush()
    assert stream.buffer.getvalue() == b"? ? ok"  # type: ignore[attr-defined]


def test_the_doors_are_taken_away_again_but_not_what_replaced_them(monkeypatch: pytest.MonkeyPatch) -> None:
    out, other = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with guarded_output():
        guard_output()  # a second door is not put before the first
        first: Any = sys.stdout
        assert first.unguarded is out
    assert sys.stdout is out
    with guarded_output():
        sys.stdout = other
    assert sys.stdout is other
