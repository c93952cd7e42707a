"""Notices to people about their own code: an old name, a setting that was chosen for them."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import whet
from whet.distributed.environment import launched

_PACKAGE = str(Path(whet.__file__).parent)


class WhetNotice(FutureWarning):
    """Something works, and there is one thing to know about it. Shown by default, once a place."""


def notice(message: str) -> None:
    """Warn once, pointing at the line of the user's code; of several processes only the main one warns."""
    if launched().rank == 0:
        warnings.warn(message, WhetNotice, stacklevel=_user_level())


def _user_level() -> int:
    """How many frames up the first one is that belongs neither to whet nor to a library around it."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and _is_library(frame.f_code.co_filename, frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    return level


def _is_library(file: str, module: str) -> bool:
    inside = file.startswith((_PACKAGE, "<string>"))  # a dataclass has an __init__ from a string
    return inside or module.partition(".")[0] in ("transformers", "accelerate", "contextlib")
