"""whet sharpens a pretrained transformer on your labelled text.

Names are loaded when they are first used, so `import whet` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from whet.predict import Prediction, Predictor, load
    from whet.run import Run
    from whet.train import fit

_PLACES = {
    "fit": "whet.train",
    "load": "whet.predict",
    "Predictor": "whet.predict",
    "Prediction": "whet.predict",
    "Run": "whet.run",
}

__all__ = ["Prediction", "Predictor", "Run", "fit", "load"]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'whet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
