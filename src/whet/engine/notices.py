"""Warnings about the user's code, for example an old name or an automatic setting."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import whet
from whet.distributed.environment import launched

_PACKAGE = str(Path(whet.__file__).parent)


class WhetNotice(FutureWarning):
    """A notice about code that works. Shown by default, once per line of code."""


def notice(message: str) -> None:
    """Warn once, with the line of the user's code; with several processes only rank 0 warns."""
    if launched().rank == 0:
        warnings.warn(message, WhetNotice, stacklevel=_user_level())


def _user_level() -> int:
    """Return how many frames up the first one is outside of whet and the libraries around it."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and _is_library(frame.f_code.co_filename, frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    return level


def _is_library(file: str, module: str) -> bool:
    inside = file.startswith((_PACKAGE, "<string>"))  # the __init__ of a dataclass is compiled from a string
    return inside or module.partition(".")[0] in ("transformers", "accelerate", "contextlib")
