"""scikit-learn's own checks of an estimator, on texts: which of them apply, and why the others do not.

The checks fit tables of random numbers. For an estimator of texts scikit-learn therefore runs one of them and leaves
the others out. Here a subclass spells each number as a word, so that every check has something to fit.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import (
    check_requires_y_none,
    check_supervised_y_2d,
    check_supervised_y_no_nan,
    estimator_checks_generator,
    parametrize_with_checks,
)
from sklearn.utils.validation import check_array

import whet
from whet.tools.selftest.tiny_run import write_model

TABLES = "is about tables of numbers, and whet reads one text, or two, of each row"
WEIGHTS = "needs fit to take a weight for each row; whet weighs classes, by a setting"
FAIL = {
    "check_do_not_raise_errors_in_init_or_set_params": "whet refuses a parameter that it does not know, with a hint",
}
"""Checks that are run and fail, each with its reason."""
DO_NOT_APPLY = {
    **dict.fromkeys(
        (
            "check_complex_data",
            "check_dtype_object",
            "check_estimators_empty_data_messages",
            "check_estimators_nan_inf",
            "check_fit1d",
            "check_fit2d_predict1d",
            "check_n_features_in",
            "check_array_api_mixed_inputs",
            "check_array_api_same_namespace",
            "check_sparsify_coefficients",
        ),
        TABLES,
    ),
    **dict.fromkeys(
        (
            "check_all_zero_sample_weights_error",
            "check_sample_weight_equivalence_on_dense_data",
            "check_sample_weight_equivalence_on_sparse_data",
            "check_sample_weights_list",
            "check_sample_weights_not_an_array",
            "check_sample_weights_not_overwritten",
            "check_sample_weights_pandas_series",
            "check_sample_weights_shape",
            "check_class_weight_classifiers",
            "check_class_weight_balanced_linear_classifier",
        ),
        WEIGHTS,
    ),
}
"""Checks that other classifiers get and this one does not, each with its reason."""
OF_LABELS = [check_requires_y_none, check_supervised_y_2d, check_supervised_y_no_nan]
"""scikit-learn leaves these out together with those of tables; they are about y."""


@cache
def _model() -> str:
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="whet-checks-")) / "model"
    write_model(folder, width=32)
    return str(folder)


class OfNumbers(whet.TextClassifier):
    """Reads the numbers of a row as words of a text: `p12 m3` is 1.2 and -0.3."""

    def fit(self, X: Any, y: Any) -> Any:
        small = {"model": _model(), "epochs": 1, "learning_rate": 3e-3, "device": "cpu", "precision": "float32"}
        given = {name: value for name, value in small.items() if name not in vars(self)}
        self.__dict__.update(given)
        try:
            return super().fit(_texts(X), y)
        finally:
            for name in given:
                del self.__dict__[name]

    def predict(self, X: Any) -> Any:
        return super().predict(_texts(X))

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(_texts(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        tags.no_validation = True
        tags.classifier_tags.poor_score = True
        return tags


def _texts(X: Any) -> list[str]:
    rows = np.asarray(check_array(X, dtype=float))
    return [" ".join(f"{'pm'[int(value < 0)]}{abs(round(10 * value))}" for value in row) for row in rows]


@pytest.mark.slow
@parametrize_with_checks([OfNumbers()], expected_failed_checks=lambda estimator: FAIL, xfail_strict=True)
def test_scikit_learns_own_checks_pass_on_texts(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize("check", OF_LABELS)
def test_scikit_learns_checks_of_labels_pass(check: Any) -> None:
    check("OfNumbers", OfNumbers())


def test_every_check_of_a_classifier_is_run_or_has_a_reason() -> None:
    def names(estimator: Any) -> set[str]:
        return {getattr(check, "func", check).__name__ for _, check in estimator_checks_generator(estimator)}

    left_out = names(LogisticRegression()) - names(OfNumbers())
    assert left_out == {*DO_NOT_APPLY, *(check.__name__ for check in OF_LABELS)}
