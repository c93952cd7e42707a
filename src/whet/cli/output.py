"""Makes all terminal output safe: no text from outside can control the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from whet.utils.text import neutral_lines

if TYPE_CHECKING:
    from rich.console import Console


class NeutralStream:
    """Writes safe text to a stream in characters of its encoding; otherwise behaves like the stream."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        shown = neutral_lines(text)
        try:
            self.unguarded.write(shown)
        except UnicodeEncodeError:
            encoding = self.unguarded.encoding
            self.unguarded.write(shown.encode(encoding, "replace").decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


def guard_output() -> None:
    """Wrap standard output and error."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, NeutralStream):
            setattr(sys, name, NeutralStream(stream))


@contextmanager
def guarded_output() -> Iterator[None]:
    """Wrap them within this context. A stream that was replaced meanwhile, because it was closed, stays replaced."""
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    guard_output()
    ours = {name: getattr(sys, name) for name in before}
    try:
        yield
    finally:
        for name, stream in before.items():
            if getattr(sys, name) is ours[name]:
                setattr(sys, name, stream)


def unguarded(stream: TextIO) -> TextIO:
    """Return the wrapped stream, for code that writes its own escape sequences."""
    return stream.unguarded if isinstance(stream, NeutralStream) else stream


def make_console(stream: TextIO, **options: Any) -> Console:
    """Return a rich console whose own colours and cursor movements work, while all given text is made safe."""
    from rich.console import Console

    console = Console(file=unguarded(stream), markup=False, highlight=False, emoji=False, **options)
    console.push_render_hook(cast(Any, _NeutralHook()))
    return console


class _NeutralHook:
    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [_Neutral(each) for each in renderables]


class _Neutral:
    """Rich's output with every piece of text made safe; colours are styles, and cursor movements are controls."""

    def __init__(self, drawn: Any) -> None:
        self.drawn = drawn

    def __rich_console__(self, console: Console, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for segment in console.render(self.drawn, options):
            if segment.control:
                yield segment
            else:
                style = segment.style.update_link(None) if segment.style else None
                yield Segment(neutral_lines(segment.text), style)

    def __rich_measure__(self, console: Console, options: Any) -> Any:
        from rich.measure import Measurement

        return Measurement.get(console, options, self.drawn)
