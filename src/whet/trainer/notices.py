"""What the Hugging Face names say to people: an old spelling, a setting without effect, a wrong argument."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from whet.distributed.environment import launched
from whet.errors import UsageError

_HERE = str(Path(__file__).parent)


class WhetNotice(FutureWarning):
    """Something works, and there is one thing to know about it. Shown by default, once a place."""


class UnknownArgument(UsageError, TypeError):
    """An argument that does not exist here; Python's own error for that is a TypeError."""


class NotHere(UsageError, AttributeError):
    """A method or an attribute of the stock Trainer that whet does not have."""


def notice(message: str) -> None:
    """Say it once, pointing at the line of the user's code that it is about; of several processes the main one."""
    if launched().rank > 0:
        return
    warnings.warn(message, WhetNotice, stacklevel=_user_level())


def _user_level() -> int:
    """How many frames up the first one is that does not belong to this package or to a dataclass."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_HERE, "<string>")):
        level, frame = level + 1, frame.f_back
    return level
