"""One exception tree: everything that whet raises on purpose.

    WhetError                       exit code
    ├── UsageError                   2   a flag, a setting or an argument
    │   └── DataError                2   what a file holds; names file, row and column where it can
    ├── ArtifactError                3   a checkpoint or a model that must not be trusted
    ├── EnvironmentFault             4   disk, permission, memory, lock, a missing package, a worker
    ├── Diverged                     5   a loss or gradient that is not finite
    └── Interrupted                 75   a signal or a deadline; run the same command again to go on
        └── Stopped                      the caller ended the run, such as a tuning

The message says what is wrong and the value that was found; the hint says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from whet.argument_names import in_python


class WhetError(Exception):
    """Base of all errors that whet raises on purpose."""

    exit_code = 1
    rank: int | None = None
    """With several processes: the rank of the error; None for an error that all have in common."""
    copied = False
    """Whether another process has reported it already."""

    def __init__(self, message: str, hint: str = "", *, go_on: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.go_on = tuple(go_on)
        """Flags with values with which the same command continues."""

    def __str__(self) -> str:
        """Return message and hint for Python, with settings as arguments; the command line prints both unchanged."""
        return in_python(f"{self.message} {self.hint}".strip())


class UsageError(WhetError):
    """A flag, a setting or an argument with an invalid value."""

    exit_code = 2


class DataError(UsageError):
    """Data that cannot be read, understood or trained on."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        file: str = "",
        row: int | None = None,
        column: str = "",
        go_on: Sequence[str] = (),
    ) -> None:
        where = ":".join(str(part) for part in (file, row, column) if part not in ("", None))
        super().__init__(f"{where}: {message}" if where else message, hint, go_on=go_on)
        self.file, self.row, self.column = file, row, column


class ArtifactError(WhetError):
    """A checkpoint or model that is damaged or unsafe."""

    exit_code = 3


class EnvironmentFault(WhetError):
    """A fault of the machine: disk, permission, memory, lock, package, worker."""

    exit_code = 4


class Diverged(WhetError):
    """A loss or gradient stopped being finite; it did not change the weights."""

    exit_code = 5


class Interrupted(WhetError):
    """A signal or deadline ended the run early; everything needed to resume is on disk."""

    exit_code = 75


class Stopped(Interrupted):
    """The run was ended by its caller, a tuning; it is complete and is not resumed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The run was stopped: {reason}.")
        self.reason = reason


def missing_extra(package: str, extra: str, purpose: str) -> EnvironmentFault:
    """Return the error for an optional package that is not installed."""
    return EnvironmentFault(
        f"{purpose} needs the package {package!r}, which is not installed.",
        f"Install it with: pip install 'whet[{extra}]'",
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the closest known spelling, or lists what is known."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names)}."


def shortened_list(names: Sequence[str], most: int = 8, *, quoted: bool = True) -> str:
    """Return the first of these names and the number of the others."""
    listed = ", ".join(map(repr if quoted else str, names[:most]))
    return f"{listed} and {len(names) - most:,} more" if len(names) > most else listed
