from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.errors import UsageError
from whet.metrics.label_errors import find_label_errors


def test_a_row_is_found_where_another_label_reaches_its_threshold() -> None:
    chances = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.05, 0.95]]
    result = find_label_errors([0, 0, 1, 1, 0], chances)
    assert result.thresholds == pytest.approx([(0.9 + 0.8 + 0.05) / 3, 0.85])
    assert result.ranked.tolist() == [4]
    assert result.likely[4] == 1


def test_a_label_that_the_model_does_not_prefer_is_not_proposed() -> None:
    # 0.4 is above the threshold of the rare label 1, but the model still prefers the given label.
    chances = [[0.9, 0.1], [0.95, 0.05], [0.6, 0.4], [0.85, 0.15]]
    assert find_label_errors([0, 0, 0, 1], chances).ranked.tolist() == [3]


def test_the_least_probable_given_label_comes_first_and_all_rows_are_ranked() -> None:
    chances = [[0.9, 0.1], [0.3, 0.7], [0.1, 0.9], [0.05, 0.95], [0.2, 0.8], [0.9, 0.1]]
    result = find_label_errors([0, 0, 1, 0, 1, 0], chances)
    assert result.order[0] == 3
    assert sorted(result.order.tolist()) == list(range(6))


def test_a_label_without_rows_is_never_proposed() -> None:
    result = find_label_errors([0, 0, 1], [[0.1, 0.1, 0.8], [0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])
    assert 2 not in result.likely[result.found]


@pytest.mark.parametrize(
    "labels, chances", [([0, 2], [[0.5, 0.5]] * 2), ([0], [[0.5, 0.5]] * 2), ([0.5], [[1.0]]), ([0], [[np.nan]])]
)
def test_labels_that_do_not_fit_the_probabilities_are_refused(labels: list[float], chances: list[list[float]]) -> None:
    with pytest.raises(UsageError):
        find_label_errors(labels, chances)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(20, 120))
def test_it_finds_what_cleanlab_finds_in_the_same_order(seed: int, labels: int, rows: int) -> None:
    find_label_issues = pytest.importorskip("cleanlab.filter").find_label_issues
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.full(labels, 0.7), size=rows)
    truth = np.array([rng.choice(labels, p=row) for row in chances])
    truth[:labels] = np.arange(labels)
    theirs = find_label_issues(
        truth, chances, filter_by="confident_learning", return_indices_ranked_by="self_confidence", n_jobs=1
    )
    assert find_label_errors(truth, chances).ranked.tolist() == theirs.tolist()
