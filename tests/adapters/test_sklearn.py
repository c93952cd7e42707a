"""whet as an estimator: scikit-learn's own tools use it on texts."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import whet
from whet.errors import UsageError

ROWS = 120
TEXTS = [f"{('no', 'yes')[n % 2]} {'apple ' * (n % 4)}{n}" for n in range(ROWS)]
LABELS = np.array([7, 3])[np.arange(ROWS) % 2]


def settings(model: Path, **changes: Any) -> dict[str, Any]:
    chosen = {"epochs": 1, "learning_rate": 3e-3, "batch_size": 8, "device": "cpu", "precision": "float32"}
    return {"model": str(model), **chosen, **changes}


@pytest.fixture(scope="module")
def fitted(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = str(tmp_path_factory.mktemp("fitted") / "run")
    return whet.TextClassifier(**settings(tiny_model_folder, run=run)).fit(TEXTS, LABELS)


def test_it_predicts_the_classes_it_was_given(fitted: Any) -> None:
    assert fitted.classes_.tolist() == [3, 7]
    chances, said = fitted.predict_proba(TEXTS[:20]), fitted.predict(TEXTS[:20])
    assert chances.shape == (20, 2)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    assert said.tolist() == fitted.classes_[chances.argmax(axis=1)].tolist()
    assert fitted.score(TEXTS, LABELS) == pytest.approx((fitted.predict(TEXTS) == LABELS).mean())
    named = whet.load(fitted.run_, device="cpu", precision="float32").predict(TEXTS[0]).probabilities
    assert named == pytest.approx({"3": chances[0, 0], "7": chances[0, 1]}, abs=1e-5)


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, lambda texts: pd.DataFrame({"any": texts})])
def test_texts_may_come_in_any_column(fitted: Any, kind: Any) -> None:
    assert fitted.predict(kind(TEXTS[:6])).tolist() == fitted.predict(TEXTS[:6]).tolist()


def test_parameters_are_settings_and_are_cloned(tiny_model_folder: Path) -> None:
    model = whet.TextClassifier(epochs=2)
    assert clone(model).set_params(seed=3).get_params() == {"epochs": 2, "seed": 3}
    assert model.get_params() == {"epochs": 2}
    with pytest.raises(UsageError, match=r"no parameter 'epoch'\. Did you mean 'epochs'"):
        model.set_params(epoch=3)
    with pytest.raises(UsageError, match="no parameter 'epoch'"):
        whet.TextClassifier(epoch=3).fit(TEXTS, LABELS)


@pytest.mark.parametrize(
    ("X", "y", "match"),
    [
        (TEXTS, LABELS[:5], "120 texts and 5 labels"),
        (TEXTS, [1] * ROWS, "y has one class only: 1. A classifier needs at least two classes"),
        ("yes", [1], "X is one text"),
        (np.array([TEXTS] * 3).T, LABELS, "X has 3 columns"),
        (TEXTS, np.eye(ROWS), "one label per row"),
        (TEXTS, np.linspace(0, 1, ROWS), "Unknown label type: y is continuous. whet.fit trains on numbers"),
        (TEXTS, [None, *LABELS[1:]], "missing"),
        (TEXTS, [np.nan, *LABELS[1:]], "missing"),
    ],
)
def test_what_cannot_be_fitted_is_said(X: Any, y: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        whet.TextClassifier().fit(X, y)


def test_a_pickle_is_small_and_predicts_the_same(fitted: Any) -> None:
    data = pickle.dumps(fitted)
    assert len(data) < 2000
    assert pickle.loads(data).predict(TEXTS[:4]).tolist() == fitted.predict(TEXTS[:4]).tolist()


def test_before_it_is_fitted_it_says_so() -> None:
    with pytest.raises(NotFittedError):
        whet.TextClassifier().predict(TEXTS)


@pytest.mark.slow
def test_a_pickle_holds_the_path_and_works_in_another_process(tiny_model_folder: Path, tmp_path: Path) -> None:
    model = whet.TextClassifier(**settings(tiny_model_folder, run=str(tmp_path / "run"))).fit(TEXTS, LABELS)
    expected = model.predict(TEXTS[:4])
    data = pickle.dumps(model)
    assert len(data) < 2000
    (tmp_path / "model.pickle").write_bytes(data)
    code = "import pickle, sys; print(*pickle.load(open(sys.argv[1], 'rb')).predict(sys.argv[2:]))"
    command = [sys.executable, "-c", code, str(tmp_path / "model.pickle"), *TEXTS[:4]]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(each) for each in expected]


@pytest.mark.slow
def test_a_temporary_run_goes_with_its_model_unless_that_was_pickled(tiny_model_folder: Path) -> None:
    import shutil

    for pickled in (False, True):
        model = whet.TextClassifier(**settings(tiny_model_folder)).fit(TEXTS, LABELS)
        folder = model.run_
        if pickled:
            pickle.dumps(model)
        del model
        assert folder.is_dir() is pickled
    shutil.rmtree(folder.parent)


def test_pairs_are_two_columns(tiny_model_folder: Path) -> None:
    frame = pd.DataFrame({"one": TEXTS, "other": TEXTS[::-1]})
    model = whet.TextClassifier(**settings(tiny_model_folder)).fit(frame, ["b", "a"] * (ROWS // 2))
    rows = list(zip(TEXTS, TEXTS[::-1], strict=True))
    assert model.predict(rows).tolist() == model.predict(frame).tolist() == model.predict(frame.to_numpy()).tolist()
    with pytest.raises(UsageError, match="trained on pairs, and was given single texts"):
        model.predict(TEXTS)


@pytest.mark.slow
def test_pipelines_grids_and_cross_validation_use_it(tiny_model_folder: Path) -> None:
    model = whet.TextClassifier(**settings(tiny_model_folder))
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    piped = make_pipeline(lower, model).fit(TEXTS, LABELS)
    assert 0 <= piped.score(TEXTS, LABELS) <= 1
    found = GridSearchCV(model, {"epochs": [1, 2]}, cv=2).fit(TEXTS, LABELS)
    assert found.best_params_["epochs"] in (1, 2)
    assert len(cross_val_score(model, TEXTS, LABELS, cv=2)) == 2
