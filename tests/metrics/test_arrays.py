import numpy as np
import pytest

from whet.errors import UsageError
from whet.metrics.arrays import as_array, as_floats, check_finite, flat_column


class Column:
    """A dataset's column: a length, rows and slices, but neither a list nor an array."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        return self.values[key]


def test_lists_columns_generators_and_arrays_become_the_same_array():
    for values in ([1, 0], (1, 0), Column([1, 0]), np.array([1, 0]), (v for v in [1, 0])):
        assert as_array(values, "labels").tolist() == [1, 0]


def test_torch_tensors_with_gradients_or_in_bfloat16_are_taken():
    torch = pytest.importorskip("torch")
    values = torch.tensor([1.5, 2.0], requires_grad=True)
    assert as_array(values, "scores").tolist() == [1.5, 2.0]
    assert as_array(values.to(torch.bfloat16), "scores").tolist() == [1.5, 2.0]
    assert as_array(list(values), "scores").tolist() == [1.5, 2.0]


def test_pandas_series_are_taken():
    pandas = pytest.importorskip("pandas")
    assert as_array(pandas.Series([1, 0]), "labels").tolist() == [1, 0]
    assert as_array(pandas.Series([1, 0], dtype="Int64"), "labels").tolist() == [1, 0]
    assert as_array(pandas.Series(["a", "b"]), "labels").tolist() == ["a", "b"]


def test_dataset_columns_are_taken():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"label": [1, 0], "several": [[1, 0], [0, 1]]})
    assert as_array(data["label"], "labels").tolist() == [1, 0]
    assert as_array(data["several"], "labels").shape == (2, 2)


def test_booleans_become_numbers():
    assert as_array([True, False], "labels").dtype == np.int64


def test_a_single_column_is_flattened_and_two_are_not():
    assert flat_column(np.ones((3, 1))).shape == (3,)
    assert flat_column(np.ones((3, 2))).shape == (3, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "labels is missing"),
        ("01", "labels is a str"),
        ({0: 1}, "labels is a dict"),
        ([1, None], "labels holds None in row 1"),
        ([[1], [1, 2]], "rows of different lengths"),
        ([object()], "labels holds <object"),
    ],
)
def test_what_holds_no_rows_is_refused(values, message):
    with pytest.raises(UsageError, match=message):
        as_array(values, "labels")


def test_words_are_not_numbers():
    with pytest.raises(UsageError, match=r"scores holds .*'high'"):
        as_floats(["high"], "scores")


def test_the_row_that_is_not_finite_is_named():
    with pytest.raises(UsageError, match=r"logits holds \[1.0, inf\] in row 1"):
        check_finite(np.array([[0.0, 1.0], [1.0, np.inf]]), "logits")
