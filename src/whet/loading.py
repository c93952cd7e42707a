"""How a command loads its libraries: it does not look for garbage meanwhile, and leaves out what it never needs.

Libraries make about a million objects that stay. With Python's own thresholds it looks for garbage among them again and
again while they are loaded, a tenth of the time of a short command; memory is the same.

Both are for a process that is a command from its first line; whoever imports whet decides for themselves.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

USUAL = gc.get_threshold()
LOADING = (2_000_000, 50, 100)
NOT_FOR_CLASSIFIERS = ("sklearn", "scipy", "torchvision", "torchaudio", "librosa")
"""What transformers imports, if it is there, to judge drafts of text, to match boxes, for pictures and for sound."""

_is_command = False
_one_at_a_time = threading.RLock()


def load_as_command() -> None:
    """Before anything is loaded."""
    global _is_command
    _is_command = True
    gc.set_threshold(*LOADING)


def keep_what_is_loaded() -> None:
    """It is never looked at again; what is made from here on is. Nothing happens in somebody else's process."""
    if _is_command:
        gc.freeze()
        gc.set_threshold(*USUAL)


@contextmanager
def only_for_classifiers() -> Iterator[None]:
    """Parts of transformers that are imported in here do without libraries that no classifier needs."""
    if not _is_command:
        yield
        return
    with _one_at_a_time, _asking_in_vain():
        yield


@contextmanager
def _asking_in_vain() -> Iterator[None]:
    from transformers import utils

    asked = [f"is_{library}_available" for library in NOT_FOR_CLASSIFIERS]
    places = [(place, name) for place in (utils, utils.import_utils) for name in asked]
    before = [(place, name, getattr(place, name)) for place, name in places if hasattr(place, name)]
    for place, name, _ in before:
        setattr(place, name, _no)
    try:
        yield
    finally:
        for place, name, answer in before:
            setattr(place, name, answer)


def _no() -> bool:
    return False
