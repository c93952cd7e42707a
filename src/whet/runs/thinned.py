"""Reads a run's records in little time and memory, whatever its length: all but the steps, and some of those.

Charts of hundreds of runs need only some hundred points per line. Most lines of a long run are steps, and the skipped
ones are not parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from whet.errors import ArtifactError
from whet.records import VERSION, Record, Step, from_line, replay
from whet.runs.folder import RECORDS
from whet.utils.untrusted_files import MAX_LINE

BLOCK = 1 << 20
STEPS = 200
"""Number of steps kept of a run, for overlapping lines on a screen."""
_STEP = f'{{"v": {VERSION}, "kind": "{Step.kind}"'.encode()


def thinned_records(folder: Path, most: int = STEPS) -> list[Record]:
    """Return the valid records; of more than so many steps only some, spread evenly, and the last."""
    path = folder / RECORDS
    if not path.is_file():
        return []
    stride, seen, number = max(1, -(-_count_steps(path) // most)), 0, 0
    kept: list[Record] = []
    passed_over = b""

    def take(line: bytes) -> None:
        record = from_line(line.decode())
        if record is not None:
            kept.append(record)

    try:
        for number, line in enumerate(_lines(path), start=1):  # noqa: B007  # told where a line is damaged
            if line.startswith(_STEP):
                seen += 1
                passed_over = line if seen % stride else b""
            elif passed_over:  # the step just before an interruption or the end
                take(passed_over)
                passed_over = b""
            if not passed_over:
                take(line)
        if passed_over:
            take(passed_over)
    except ValueError:
        raise ArtifactError(f"{str(path)!r} is damaged at line {number}.") from None
    return list(replay(kept))


def _count_steps(path: Path) -> int:
    """Count step records without parsing them. A line without end stops the reading, as it does in `_lines`."""
    steps = open_line = 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            steps += block.count(_STEP)
            end = block.rfind(b"\n")
            open_line = open_line + len(block) if end < 0 else len(block) - end - 1
            if open_line > MAX_LINE:
                break
    return steps


def _lines(path: Path) -> Iterator[bytes]:
    """Yield complete lines in blocks: `whole_lines` reads them one by one, which takes longer than the disk."""
    rest = b""
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            *lines, rest = (rest + block).split(b"\n")
            if len(rest) > MAX_LINE:
                raise ValueError("a line is too long")
            yield from lines
