"""What a person decided about suspicious rows: appended to reviewed.csv, on the disk before the next row is shown."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from threading import Lock

from whet.errors import ArtifactError, EnvironmentFault
from whet.runs.label_errors import Suspect
from whet.utils.files import sync_folder
from whet.utils.review_file import CHECK, COLUMNS, DECISION, DECISIONS, ROW, header_line

REVIEWED = "reviewed.csv"


class Decisions:
    """The file of one run's decisions. The last line of a row counts; a line without a decision takes it back."""

    def __init__(self, path: Path, suspects: list[Suspect]) -> None:
        self.path = path
        self.suspects = {suspect.row: suspect for suspect in suspects}
        self._lock = Lock()
        if path.is_symlink():
            raise EnvironmentFault(f"{str(path)!r} is a link, which a run folder never holds.", "Remove it.")
        try:
            self._drop_torn_line()
            self.decided = self._read()
        except OSError as error:
            raise _unwritable(path, error) from None

    def decide(self, row: int, decision: str) -> None:
        """Append a decision (or nothing, to take one back), and return once it is on the disk."""
        suspect = self.suspects[row]
        with self._lock:
            try:
                self._append(suspect.as_line(decision))
            except OSError as error:
                raise _unwritable(self.path, error) from None
            if decision:
                self.decided[row] = decision
            else:
                self.decided.pop(row, None)

    def _append(self, line: str) -> None:
        is_new = not self.path.exists()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        handle = os.open(self.path, flags, 0o644)
        try:
            before = os.fstat(handle).st_size
            data = ((header_line() if not before else "") + line).encode("utf-8", "replace")
            try:
                while data:
                    data = data[os.write(handle, data) :]
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, before)  # a full disk: half a line would spoil the next one
                raise
        finally:
            os.close(handle)
        if is_new:
            sync_folder(self.path.parent)

    def _drop_torn_line(self) -> None:
        """Cut off the half line that a killed process may have left."""
        if not self.path.is_file():
            return
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            with open(self.path, "r+b") as file:
                file.truncate(whole)

    def _read(self) -> dict[int, str]:
        """The decisions about rows that are still suspicious and have the same text."""
        if not self.path.is_file() or not self.path.stat().st_size:
            return {}
        found: dict[int, str] = {}
        try:
            with open(self.path, encoding="utf-8-sig", newline="") as file:
                lines = csv.DictReader(file)
                if tuple(lines.fieldnames or ()) != COLUMNS:
                    raise ValueError
                for line in lines:
                    row, decision = int(line[ROW]), line[DECISION]
                    if decision and decision not in DECISIONS:
                        raise ValueError
                    suspect = self.suspects.get(row)
                    if suspect is not None and suspect.check == line[CHECK]:
                        found[row] = decision
        except (ValueError, TypeError, csv.Error, UnicodeDecodeError):
            raise ArtifactError(
                f"{str(self.path)!r} does not hold the decisions that a review page writes.",
                "Move it away to begin a new review.",
            ) from None
        return {row: decision for row, decision in found.items() if decision}


def _unwritable(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"Cannot write the decisions to {str(path)!r}: {error.strerror or error}.", "Make room or permissions there."
    )
