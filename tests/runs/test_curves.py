import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.errors import UsageError
from whet.records import End, Evaluation, Resume, Save, Step, replay
from whet.runs.curves import Series, curves, downsample, smooth, sparkline, window_means


def step(at: int, loss: float = 0.5, **more: float) -> Step:
    return Step(step=at, epoch=at / 10, loss=loss, learning_rate=1e-5 * at, **more)


def evaluation(at: int, loss: float, split: str = "validation", **more: object) -> Evaluation:
    return Evaluation(step=at, epoch=1.0, split=split, loss=loss, metrics={"accuracy": 1 - loss}, rows=10, **more)


def test_series_hold_what_was_recorded() -> None:
    found = curves([step(5, 0.7, grad_norm=2.0), evaluation(5, 0.6, probe_loss=0.55), step(10, 0.4)])
    assert found.loss.steps.tolist() == [5, 10]
    assert found["eval_loss"].values.tolist() == [0.6]
    assert found["probe_loss"].values.tolist() == [0.55]
    assert found["accuracy"].last == pytest.approx(0.4)
    assert found["grad_norm"].steps.tolist() == [5]


def test_test_rows_are_not_mixed_into_the_validation_curve() -> None:
    found = curves([evaluation(5, 0.6), evaluation(10, 0.5), evaluation(10, 0.9, split="test")])
    assert found.split == "validation"
    assert found.evaluation.values.tolist() == [0.6, 0.5]


def test_marks_are_best_saves_and_resumes() -> None:
    records = [
        evaluation(5, 0.6, best=True),
        Save(step=5, path="checkpoints/step-5"),
        step(8),
        Resume(step=5, path="checkpoints/step-5"),
        Save(step=5, path="checkpoints/step-5"),
        step(8),
        End(step=10, reason="finished", best_step=5),
    ]
    found = curves(replay(records))
    assert (found.best_step, found.saves, found.resumes) == (5, (5,), (5,))
    assert found.loss.steps.tolist() == [8]


def test_an_unknown_series_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="eval_loss"):
        curves([evaluation(5, 0.6)])["evalloss"]


def test_smoothing_starts_at_the_first_value_and_survives_a_nan() -> None:
    found = smooth(np.array([2.0, math.nan, 2.0, 4.0]), 0.5)
    assert found[:3].tolist() == pytest.approx([2, 2, 2])
    assert 2 < found[3] < 4


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 0.99))
def test_smoothing_stays_between_lowest_and_highest(values: list[float], smoothing: float) -> None:
    found = smooth(np.array(values), smoothing)
    slack = 1e-6 * (1 + max(map(abs, values)))
    assert min(values) - slack <= found.min() <= found.max() <= max(values) + slack


def test_the_running_loss_is_averaged_between_evaluations() -> None:
    loss = Series(np.array([1, 2, 3, 4]), np.array([4.0, 2.0, 1.0, 0.0]))
    assert window_means(loss, np.array([2, 4, 6])).tolist() == [3.0, 0.5, 0.0]


@given(st.integers(0, 4999), st.integers(4, 300))
def test_downsampling_keeps_a_single_peak(where: int, points: int) -> None:
    values = np.zeros(5000)
    values[where] = 7.0
    steps, kept = downsample(np.arange(5000), values, points)
    assert kept.max() == 7.0
    assert steps[kept.argmax()] == where
    assert len(kept) <= points
    assert (steps[0], steps[-1]) == (0, 4999)


def test_a_short_curve_is_not_downsampled() -> None:
    steps, values = downsample(np.arange(3), np.array([1.0, 2.0, 3.0]), 10)
    assert (steps.tolist(), values.tolist()) == ([0, 1, 2], [1.0, 2.0, 3.0])


def test_a_sparkline_goes_from_low_to_high_and_marks_what_is_not_finite() -> None:
    assert sparkline([0.0, 1.0], 2) == "▁█"
    assert sparkline([0.0, math.nan, 1.0], 3) == "▁×█"
    assert len(sparkline(list(range(100)), 12)) == 12


def test_the_frame_has_a_row_a_step() -> None:
    pytest.importorskip("pandas")
    frame = curves([step(5), step(10), evaluation(10, 0.6)]).frame()
    assert frame.index.tolist() == [5, 10]
    assert frame.loc[10, "eval_loss"] == 0.6
    assert math.isnan(frame.loc[5, "eval_loss"])


def test_runs_are_read_without_torch_pandas_or_scipy() -> None:
    heavy = ["torch", "transformers", "datasets", "pandas", "scipy", "sklearn", "pyarrow"]
    modules = ["curves", "verdict.judge", "verdict.foreign_logs", "compare", "summary", "folder"]
    code = (
        f"import sys, {', '.join('whet.runs.' + name for name in modules)};"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
