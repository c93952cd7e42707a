"""whet as a scikit-learn classifier of texts, or of pairs of texts.

    model = whet.TextClassifier(epochs=3, learning_rate=5e-5)
    model.fit(texts, labels).score(more_texts, more_labels)

X is a list, an array or a Series of texts; two columns (a DataFrame, an array, a list of pairs) are pairs. Parameters
are the settings of `whet.fit`.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import type_of_target

from whet.config import SETTINGS, SHORT_NAMES
from whet.data.readers.given_texts import GivenTexts, given_texts
from whet.errors import UsageError, nearest
from whet.utils.arrays import Array

if TYPE_CHECKING:
    from whet.inference.predictor import Predictor

OWN = ("source", "text", "pair", "label", "task", "label_delimiter", "validation", "test")
"""Settings that X and y replace."""


class InputError(UsageError, ValueError):
    """A mistake in X or y: a ValueError too, which scikit-learn's tools expect."""


class TextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Fine-tunes a pretrained transformer in `fit`. A tenth of the rows is kept aside to choose the best step.

    The run goes to a temporary folder, unless `run` names one, which has to be new for each fit. Pickles hold the
    path of the run and no weights; the temporary folder of a pickled model is kept.
    """

    def __init__(self, **settings: Any) -> None:
        self.__dict__.update(settings)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the given settings."""
        return {
            name: value for name, value in vars(self).items() if not name.startswith("_") and not name.endswith("_")
        }

    def set_params(self, **settings: Any) -> Self:
        """Change settings; unknown ones raise."""
        known = (SETTINGS.keys() | SHORT_NAMES.keys()) - set(OWN)
        for name in settings:
            if name not in known:
                raise UsageError(f"TextClassifier has no parameter {name!r}.", nearest(name, known))
        self.__dict__.update(settings)
        return self

    def fit(self, X: Any, y: Any) -> Self:
        """Train on texts, or pairs of texts, with one label per row."""
        from whet.api import fit

        settings = self.get_params()
        TextClassifier().set_params(**settings)  # reports a misspelt name in the constructor
        given, labels = _texts(X), _labels(y)
        if len(labels) != len(given.first):
            raise InputError(f"There are {len(given.first)} texts and {len(labels)} labels.", "Give one label a text.")
        self.classes_, places = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise InputError(f"y has one class only: {only!r}.", "A classifier needs at least two classes.")
        self._names = _names(self.classes_)
        columns: dict[str, Any] = {"text": given.first, "label": [self._names[place] for place in places]}
        if given.second is not None:
            columns["pair"] = given.second
            settings["pair"] = "pair"
        self._use_folder(settings)
        settings.setdefault("test_share", 0.0)  # callers of fit keep their own test rows
        task = "binary" if len(self.classes_) == 2 else "multiclass"
        fit(columns, text="text", label="label", task=task, **settings)
        self._loaded: list[Predictor] = []  # filled when it is first used; predicting sets no attribute
        return self

    def predict(self, X: Any) -> Array:
        """Return the class of each row."""
        from whet.inference.decisions import read_logits

        model = self._model()
        read = read_logits(model.task, self._logits(X), model.decisions)
        order = [model.task.labels.index(name) for name in self._names]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return np.asarray(self.classes_[back[read.answers]])

    def predict_proba(self, X: Any) -> Array:
        """Return calibrated probabilities, one column per entry of `classes_`."""
        from whet.inference.decisions import read_logits

        model = self._model()
        chances = read_logits(model.task, self._logits(X), model.decisions).chances
        return np.asarray(chances[:, [model.task.labels.index(name) for name in self._names]])

    def _logits(self, X: Any) -> Array:
        given, model = _texts(X), self._model()
        if bool(model.pairs) != (given.second is not None) and given.first:
            was, got = ("pairs", "single texts") if model.pairs else ("single texts", "pairs")
            raise InputError(f"The model was trained on {was}, and was given {got}.")
        return model.logits(given.first, given.second)

    def _model(self) -> Predictor:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "run_")
        if not self._loaded:
            from whet.inference.predictor import Predictor

            device, trust = vars(self).get("device", "auto"), bool(vars(self).get("trust_remote_code", False))
            precision = vars(self).get("precision", "auto")
            self._loaded.append(Predictor(self.run_, device=device, precision=precision, trust_remote_code=trust))
        return self._loaded[0]

    def _use_folder(self, settings: dict[str, Any]) -> None:
        if (remove := self.__dict__.pop("_remove", None)) is not None:
            remove()  # the run of an earlier fit
        if settings.get("run"):
            self.run_ = Path(settings["run"])
            return
        scratch = tempfile.mkdtemp(prefix="whet-")
        self._remove = weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        self.run_ = Path(scratch) / "run"
        settings["run"] = str(self.run_)
        settings.setdefault("keep", 1)

    def __getstate__(self) -> dict[str, Any]:
        if (remove := self.__dict__.pop("_remove", None)) is not None:
            remove.detach()  # the pickle needs the folder
        state = dict(super().__getstate__())
        return {**state, "_loaded": []} if "_loaded" in state else state

    def __sklearn_is_fitted__(self) -> bool:
        return "run_" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False, True
        return tags


def _texts(X: Any) -> GivenTexts:
    """Return one or two columns of texts."""
    if hasattr(X, "iloc") and getattr(X, "ndim", 1) == 2:
        X = [X.iloc[:, place].tolist() for place in range(X.shape[1])]
    elif isinstance(X, np.ndarray) and X.ndim == 2:
        X = [X[:, place].tolist() for place in range(X.shape[1])]
    else:
        found = given_texts(X)
        if found.single:
            raise InputError("X is one text.", "Give a list of texts.")
        return found
    if len(X) not in (1, 2):
        raise InputError(f"X has {len(X)} columns.", "Give one column of texts, or two for pairs.")
    return given_texts(*X)


def _labels(y: Any) -> Array:
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None")  # as in scikit-learn's own classifiers
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = column_or_1d(labels, warn=True)
    if labels.ndim != 1:
        raise InputError(f"y has the shape {labels.shape}.", "Give one label per row; several labels are for whet.fit.")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError("y holds labels that are missing.", "Leave those rows out.")
    if labels.dtype.kind == "O" and any(label is None or label != label for label in labels.tolist()):
        raise InputError("y holds labels that are missing.", "Leave those rows out.")
    if type_of_target(labels) == "continuous":
        raise InputError("Unknown label type: y is continuous.", "whet.fit trains on numbers with fractions.")
    return labels


def _names(classes: Array) -> list[str]:
    """Return the classes as label names, in their own spelling if that is unique."""
    names = [str(label) for label in classes.tolist()]
    plain = {name.strip() for name in names}
    return names if len(plain) == len(names) and plain == set(names) and "" not in plain else _numbered(names)


def _numbered(names: list[str]) -> list[str]:
    return [f"class {number}" for number in range(len(names))]
