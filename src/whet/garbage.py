"""When a command looks for garbage: not while it loads what it needs.

Libraries make about a million objects that stay. With Python's own thresholds it looks for garbage among them again and
again while they are loaded, a tenth of the time of a short command; memory is the same.
"""

from __future__ import annotations

import gc

USUAL = gc.get_threshold()
LOADING = (2_000_000, 50, 100)


def load_without_looking() -> None:
    """For a process that is a command from its first line; whoever imports whet decides for themselves."""
    gc.set_threshold(*LOADING)


def keep_what_is_loaded() -> None:
    """It is never looked at again; what is made from here on is. Nothing happens in somebody else's process."""
    if gc.get_threshold() == LOADING:
        gc.freeze()
        gc.set_threshold(*USUAL)
