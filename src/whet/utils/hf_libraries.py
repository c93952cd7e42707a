"""Speeds up a command's imports: no garbage collection, and no libraries that a classifier does not use.

The libraries create about a million objects that stay. With Python's own thresholds the collector scans them again
and again, which takes a tenth of a short command's time. transformers also imports whichever optional libraries it
finds, for other kinds of work.

This applies only to processes that are commands from their first line. A process that imports whet keeps its own
rules.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
MASKS = f"{COMPILER}._trace_wrapped_higher_order_op"
MARKS = ("disable", "allow_in_graph", "assume_constant_result")
"""Decorators of torch's compiler; without the compiler they do nothing."""
USUAL = gc.get_threshold()
LOADING = (2_000_000, 50, 100)
NOT_FOR_CLASSIFIERS = ("sklearn", "scipy", "torchvision", "torchaudio", "librosa", "peft")
"""Optional libraries that transformers imports for assisted decoding, object detection, images and audio; and PEFT,
for which it would look for an adapter beside every model."""
NOT_FOR_PREDICTING = ("torch_distributed", "accelerate")
"""Libraries that transformers imports to split a model over devices; a command that only predicts does not need
them."""
NAME = re.compile(r"^Name:[ \t]*(\S+)\s*$", re.MULTILINE | re.IGNORECASE)

_is_command = False
_only_predicts = False
_one_at_a_time = threading.RLock()


def load_as_command() -> None:
    """Turn the garbage collector down; called before any library is imported."""
    global _is_command
    _is_command = True
    gc.set_threshold(*LOADING)


def load_for_predicting() -> None:
    """Leave out a third of the libraries, in a command that only predicts, in one process."""
    global _only_predicts
    if _is_command and "pyarrow" not in sys.modules and "transformers" not in sys.modules:
        _only_predicts = True
        _arrow_without_pandas()


def _arrow_without_pandas() -> None:
    """Make Arrow skip pandas. Arrow imports it for its first array, to recognise a Series."""
    if "pandas" in sys.modules:
        return
    import pyarrow

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pyarrow.array([""])  # the only time that Arrow tries to import pandas
    finally:
        sys.meta_path.remove(finder)


class _NoPandas:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ImportError("left out")


def freeze_garbage_collector() -> None:
    """Exclude everything loaded so far from garbage collection, then restore the usual thresholds. Only commands do
    this."""
    if _is_command:
        gc.freeze()
        gc.set_threshold(*USUAL)


def transformers_library() -> Any:
    """Import transformers, with a faster `packages_distributions` while it is imported."""
    if _is_command and "transformers" not in sys.modules:
        from importlib import metadata

        with _one_at_a_time, _replaced([(metadata, "packages_distributions", packages_distributions)]):
            import_module("transformers")
    return import_module("transformers")


@contextmanager
def skip_unused_imports() -> Iterator[None]:
    """Import parts of transformers in this context without the libraries that a classifier does not use."""
    if not _is_command:
        yield
        return
    utils = transformers_library().utils
    left_out = (*NOT_FOR_CLASSIFIERS, *(NOT_FOR_PREDICTING if _only_predicts else ()))
    asked = [f"is_{library}_available" for library in left_out]
    places = [(place, name) for place in (utils, utils.import_utils) for name in asked if hasattr(place, name)]
    with _one_at_a_time, _replaced([(place, name, _no) for place, name in places]), _without_compiler():
        yield


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Replace torch's compiler by stand-ins, so that it is not imported. transformers uses one of its classes for
    masks and marks functions for it, and the initialization of weights marks others."""
    if not _only_predicts or COMPILER in sys.modules:
        yield
        return
    import torch

    compiler = _StandIn(COMPILER, dict.fromkeys(MARKS, _as_it_is), is_package=True)
    part = _StandIn(MASKS, {"TransformGetItemToIndex": lambda: import_module(MASKS).TransformGetItemToIndex()})
    sys.modules |= {COMPILER: compiler, MASKS: part}
    torch._dynamo = compiler
    try:
        with _replaced([(torch.compiler, name, _as_it_is) for name in MARKS]):
            yield
    finally:
        part.leave()
        compiler.leave()


class _StandIn(ModuleType):
    """A module with a few names. It is replaced by the real module as soon as any other name is used."""

    def __init__(self, name: str, names: dict[str, Any], *, is_package: bool = False) -> None:
        super().__init__(name)
        self.is_package = is_package
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and not (name == "__path__" and self.is_package):
            raise AttributeError(name)
        self.leave()
        return getattr(import_module(self.__name__), name)

    def leave(self) -> None:
        parent, _, name = self.__name__.rpartition(".")
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        if parent in sys.modules and vars(sys.modules[parent]).get(name) is self:
            delattr(sys.modules[parent], name)


def _as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    return (lambda each: each) if function is None else function


@contextmanager
def _replaced(replacements: list[tuple[Any, str, Any]]) -> Iterator[None]:
    before = [(place, name, getattr(place, name)) for place, name, _ in replacements]
    for place, name, other in replacements:
        setattr(place, name, other)
    try:
        yield
    finally:
        for place, name, own in before:
            setattr(place, name, own)


def _no() -> bool:
    return False


def packages_distributions() -> dict[str, list[str]]:
    """Do the work of `importlib.metadata.packages_distributions` six to twenty times as fast, with a few names more.

    Python's version parses all metadata of each distribution for its name, and makes a path of each installed file.
    Some versions leave out packages without a .py file.
    """
    from importlib import metadata

    found: dict[str, list[str]] = {}
    for each in metadata.distributions():
        if packages := _packages(each):
            name = _name(each)
            for package in packages:
                found.setdefault(package, []).append(name)
    return found


def _name(distribution: Any) -> str:
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    header = text.partition("\n\n")[0]
    plain = NAME.search(header)
    return plain[1] if plain else distribution.metadata["Name"]


def _packages(distribution: Any) -> set[str]:
    """Return the names by which a distribution can be imported: the declared ones, or those found in its list of
    files."""
    from inspect import getmodulename

    if declared := (distribution.read_text("top_level.txt") or "").split():
        return set(declared)
    if record := distribution.read_text("RECORD"):
        files = [line.partition(",")[0].strip('"') for line in record.splitlines()]
    else:
        files = [str(file) for file in distribution.files or ()]
    tops = {file.partition("/")[0] if "/" in file else getmodulename(file) for file in files}
    return {top for top in tops if top and "." not in top} - {"__pycache__"}
