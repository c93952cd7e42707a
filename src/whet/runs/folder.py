"""The run folder: the only thing that curves, verdict, report, live page and compare read.

config.toml        everything needed to run it again, defaults written out
data.json          where the data came from, its fingerprint, the audit, what truncation cut
environment.json   versions, device, precision, the path the engine took and why
records.jsonl      one record a line, append-only
checkpoints/       step-000459/ …, each complete or absent
parts/             fold-1/ … or seed-1/ …: records and checkpoints of each training, where there are several
model/             a standard Hugging Face folder
adapter/           what trained, in PEFT's format, where --lora was set
model.sums.json    what proves that the files in it are those that were written
predictions.parquet
baselines.json     simpler answers to the same rows, with what they score
report.html
labels/            folds that `whet labels` trained for a run that had none
label_errors.csv   rows whose label looks wrong; reviewed.csv: decisions about them, append-only
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.config import Config, make_config, read_toml, to_toml
from whet.errors import ArtifactError, EnvironmentFault, UsageError
from whet.records import End, Record, from_line, replay, to_line
from whet.utils.files import unwritable
from whet.utils.untrusted_files import parse_json, read_text, replace_file, whole_lines

RECORDS = "records.jsonl"
CONFIG = "config.toml"
LOCK = ".lock"
SUMS = "model.sums.json"
UNFINISHED_MODEL = ".model.tmp"
UNFINISHED_ADAPTER = ".adapter.tmp"
BEFORE_RECIPES = {"recipe": "course", "folds": 0}
"""The behaviour of versions without these settings."""
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


def sums_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file in the folder, by relative path."""
    return {name: sum_of(file) for name, file in files_of(folder).items()}


def files_of(folder: Path) -> dict[str, Path]:
    """Return every file by relative path; a tokenizer may have subfolders."""
    found = [entry for entry in sorted(folder.rglob("*")) if entry.is_symlink() or not entry.is_dir()]
    for entry in found:
        # Reading a pipe or device may never end, and a link may lead to one.
        if entry.is_symlink() or not entry.is_file():
            raise ArtifactError(f"{str(entry)!r} is not a file, and a run's model has nothing else.", "Train again.")
    return {file.relative_to(folder).as_posix(): file for file in found}


def sum_of(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@dataclass(frozen=True)
class RunFolder:
    """One run on disk. Reading works on a running, a finished or a copied run."""

    path: Path

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Open an existing run."""
        folder = Path(path)
        if not folder.is_dir():
            raise UsageError(f"There is no run folder {str(path)!r}.", "`whet runs` lists the runs there are.")
        if not (folder / RECORDS).is_file() and not (folder / CONFIG).is_file():
            raise UsageError(f"{str(path)!r} is not a run folder: it has no {RECORDS}.", "`whet runs` lists them.")
        return cls(folder)

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """Create a run in a new or empty folder."""
        run = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            run._refuse_foreign()
            with run.locked():
                run._refuse_foreign()  # checked again: another process may have started a run there meanwhile
                run.write_text(CONFIG, to_toml(config))
            return run
        except OSError as error:
            raise _unwritable_run(path, error) from None

    def _refuse_foreign(self) -> None:
        # A process that was killed at the start of a run may have left these.
        own = {LOCK, _scratch(CONFIG)}
        if self.path.is_symlink() or any(entry.name not in own for entry in self.path.iterdir()):
            raise EnvironmentFault(
                f"The folder {str(self.path)!r} holds something else.",
                "Choose another one with --run; nothing was touched.",
            )

    def refuse_links(self) -> None:
        """Refuse links, through which the run would write outside its folder."""
        try:
            found = [self.path, *self.path.iterdir()]
            found += self.checkpoints.iterdir() if self.checkpoints.is_dir() else []
        except OSError as error:
            raise _unwritable_run(self.path, error) from None
        for entry in found:
            if entry.is_symlink():
                raise EnvironmentFault(
                    f"{str(entry)!r} is a link, which a run folder never holds.",
                    "Remove it, or choose another --run; nothing was touched.",
                )

    def refuse_changed_model(self) -> None:
        """Refuse a model with changed files: one flipped bit still loads, and changes its answers."""
        if not (self.path / SUMS).is_file():
            return
        expected = self.read_json(SUMS)
        found = sums_of(self.model)
        for name in expected:
            if found.get(name) != expected[name]:
                raise ArtifactError(
                    f"{str(self.model / name)!r} is not the file that the run has written: it was damaged or changed.",
                    f"Train again; to use it as it is, load {str(self.model)!r} instead of the run.",
                )

    def discard_unstarted(self) -> None:
        """Delete a folder that holds only its settings; any other is kept."""
        if {entry.name for entry in self.path.iterdir()} <= {CONFIG, LOCK}:
            for name in (CONFIG, LOCK):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config(self) -> Config:
        return make_config(BEFORE_RECIPES, read_toml(self.path / CONFIG))

    @property
    def data(self) -> dict[str, Any]:
        return self.read_json("data.json")

    @property
    def environment(self) -> dict[str, Any]:
        return self.read_json("environment.json")

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def unfinished_model(self) -> Path:
        """The folder in which `model` is written first."""
        return self.path / UNFINISHED_MODEL

    @property
    def adapter(self) -> Path:
        return self.path / "adapter"

    @property
    def unfinished_adapter(self) -> Path:
        """The folder in which `adapter` is written first."""
        return self.path / UNFINISHED_ADAPTER

    def records(self) -> list[Record]:
        """Return the valid records, without those that a later Resume record voids."""
        return list(replay(self.all_records()))

    def all_records(self) -> Iterator[Record]:
        """Yield every complete line; a half-written last line is skipped."""
        path = self.path / RECORDS
        if not path.is_file():
            return
        lines, number = whole_lines(path), 0
        while True:
            number += 1
            try:
                line = next(lines, None)
                record = from_line(line.decode()) if line is not None else None
            except ValueError:
                raise ArtifactError(f"{str(path)!r} is damaged at line {number}.") from None
            if line is None:
                return
            if record is not None:
                yield record

    @property
    def finished(self) -> bool:
        """Whether training reached its end and all results were written."""
        last = None
        for record in self.all_records():
            last = record
        return isinstance(last, End) and last.reason in ("finished", "patience")

    def append(self, record: Record) -> None:
        """Append a record as one complete line."""
        line = (to_line(record) + "\n").encode("utf-8", errors="replace")
        try:
            handle = os.open(self.path / RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINKS, 0o644)
            try:
                before = os.fstat(handle).st_size
                try:
                    _write_all(handle, line)
                except OSError:
                    os.ftruncate(handle, before)  # the disk is full: remove the partial line
                    raise
            finally:
                os.close(handle)
        except OSError as error:
            raise _unwritable_run(self.path, error) from None

    def sync_records(self) -> None:
        """Sync the records to disk: a checkpoint is about to rely on them."""
        with open(self.path / RECORDS, "rb") as file:
            os.fsync(file.fileno())

    def drop_torn_line(self) -> None:
        """Remove a half-written line of a killed process before appending."""
        path = self.path / RECORDS
        if not path.is_file():
            return
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            with open(path, "r+b") as file:
                file.truncate(whole)

    def read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if not path.is_file():
            return {}
        try:
            content = parse_json(read_text(path))
        except ValueError as error:
            raise ArtifactError(f"{str(path)!r} is damaged: it is not JSON ({error}).") from None
        return content if isinstance(content, dict) else {}

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        self.write_text(name, json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a file atomically, so that readers never see half of it."""
        try:
            # Texts of rows may hold characters that UTF-8 cannot encode; they are replaced.
            replace_file(self.path / name, text.encode("utf-8", errors="replace"))
        except OSError as error:
            raise _unwritable_run(self.path, error) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock, so that one process writes at a time; the system releases it when the process ends."""
        try:
            import fcntl
        except ImportError:  # Windows has no such lock
            yield
            return
        try:
            handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | _NO_LINKS, 0o644)
        except OSError as error:
            raise _unwritable_run(self.path, error) from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    yield  # some network file systems have no locks; training without one is better than none
                    return
                raise EnvironmentFault(
                    f"Another process is writing the run {str(self.path)!r}.",
                    "Wait for it, or choose another --run.",
                ) from None
            yield
        finally:
            os.close(handle)


def next_run_path(root: Path, name: str) -> Path:
    """Return runs/NAME-001, counting up from the highest number."""
    taken = [number for number, _ in _numbered(root, name)]
    return root / f"{name}-{max(taken, default=0) + 1:03d}"


def runs_named(root: Path, name: str) -> list[RunFolder]:
    """Yield the runs of this name in a folder, newest number first."""
    found = sorted(_numbered(root, name), reverse=True)
    return [RunFolder(path) for _, path in found if (path / CONFIG).is_file()]


def run_name(source: str) -> str:
    """Return a run's name for its source: reviews.csv gives reviews, glue/mrpc gives mrpc."""
    stem = Path(source.rstrip("/*")).name.split(".")[0] if source not in ("", "-") else "run"
    return re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-") or "run"


def _numbered(root: Path, name: str) -> Iterator[tuple[int, Path]]:
    if root.is_dir():
        for path in root.iterdir():
            match = re.fullmatch(re.escape(name) + r"-(\d{3,})", path.name)
            if match and path.is_dir() and not path.is_symlink():
                yield int(match.group(1)), path


def is_run(path: Path) -> bool:
    """Return whether this folder holds a run."""
    return path.is_dir() and ((path / RECORDS).is_file() or (path / CONFIG).is_file())


def _scratch(name: str) -> str:
    return f".{name}.tmp"


def _unwritable_run(path: Path, error: OSError) -> EnvironmentFault:
    return unwritable(path, error, "Choose another folder with --run, or make room and permissions there.")


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]
