"""How a command loads its libraries: it does not look for garbage meanwhile, and leaves out what it never needs.

Libraries make about a million objects that stay. With Python's own thresholds it looks for garbage among them again and
again while they are loaded, a tenth of the time of a short command; memory is the same. transformers looks at all that
is installed, and imports libraries for other work than ours where it finds them.

All of this is for a process that is a command from its first line; whoever imports whet decides for themselves.
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
"""What tells the compiler how to take a function: without it they do nothing."""
USUAL = gc.get_threshold()
LOADING = (2_000_000, 50, 100)
NOT_FOR_CLASSIFIERS = ("sklearn", "scipy", "torchvision", "torchaudio", "librosa")
"""What transformers imports, if it is there, to judge drafts of text, to match boxes, for pictures and for sound."""
NOT_FOR_PREDICTING = ("torch_distributed", "accelerate")
"""And what it imports to split a model over several devices, which a command that only predicts never does."""
NAME = re.compile(r"^Name:[ \t]*(\S+)\s*$", re.MULTILINE | re.IGNORECASE)

_is_command = False
_only_predicts = False
_one_at_a_time = threading.RLock()


def load_as_command() -> None:
    """Before anything is loaded."""
    global _is_command
    _is_command = True
    gc.set_threshold(*LOADING)


def load_for_predicting() -> None:
    """In a command that predicts in this one process and trains nothing: a third of its libraries is left out."""
    global _only_predicts
    if _is_command and "pyarrow" not in sys.modules and "transformers" not in sys.modules:
        _only_predicts = True
        _arrow_without_pandas()


def _arrow_without_pandas() -> None:
    """Arrow imports pandas when it first makes an array, to know a Series: here it is told that there is none."""
    if "pandas" in sys.modules:
        return
    import pyarrow

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pyarrow.array([""])  # it asks once
    finally:
        sys.meta_path.remove(finder)


class _NoPandas:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ImportError("left out")


def freeze_garbage_collector() -> None:
    """It is never looked at again; what is made from here on is. Nothing happens in somebody else's process."""
    if _is_command:
        gc.freeze()
        gc.set_threshold(*USUAL)


def transformers_library() -> Any:
    """transformers, which asks while it is imported what distribution every package on the machine is of."""
    if _is_command and "transformers" not in sys.modules:
        from importlib import metadata

        with _one_at_a_time, _replaced([(metadata, "packages_distributions", packages_distributions)]):
            import_module("transformers")
    return import_module("transformers")


@contextmanager
def skip_unused_imports() -> Iterator[None]:
    """Parts of transformers that are imported in here do without libraries that no classifier needs."""
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
    """transformers takes one class of torch's compiler for masks and marks functions for it, and a model that is made
    asks it to stay out of the drawing of weights: with that all of the compiler would be imported. Stand-ins are there
    meanwhile."""
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
    """A module with a few names, which gives way to the one that it stands for as soon as another is asked for."""

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
    """What Python's own function of that name finds, six to twenty times as fast, and a few names more.

    Python's parses all of every distribution's metadata for its name, and makes a path of each installed file. In some
    versions it passes over packages that have no .py file.
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
    """The names that it can be imported by: as it declares them, or else by where its files lie."""
    from inspect import getmodulename

    if declared := (distribution.read_text("top_level.txt") or "").split():
        return set(declared)
    if record := distribution.read_text("RECORD"):
        files = [line.partition(",")[0].strip('"') for line in record.splitlines()]
    else:
        files = [str(file) for file in distribution.files or ()]
    tops = {file.partition("/")[0] if "/" in file else getmodulename(file) for file in files}
    return {top for top in tops if top and "." not in top} - {"__pycache__"}
