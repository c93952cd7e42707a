import numpy as np
import pytest
from datasets import Dataset, Features, Sequence, Value
from hypothesis import given, settings
from hypothesis import strategies as st

from whet.data.tokens.from_dataset import Unrepresentable, from_rows

IDS = [[5, 6, 7], [8], [9, 10]]


def as_lists(tokens):
    return [tokens.row(i).tolist() for i in range(len(tokens))]


def make_dataset(**columns):
    return Dataset.from_dict({"input_ids": IDS, **columns})


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), min_size=1, max_size=8))
@settings(deadline=None)
def test_rows_come_through_as_they_are(rows):
    dataset = Dataset.from_dict({"input_ids": rows}, features=Features({"input_ids": Sequence(Value("int64"))}))
    assert as_lists(from_rows(dataset)) == rows
    assert as_lists(from_rows([{"input_ids": row} for row in rows])) == rows


def test_a_data_set_and_a_list_of_its_rows_are_the_same():
    dataset = make_dataset(labels=[1, 0, 1], token_type_ids=[[0, 0, 1], [0], [0, 1]])
    one, other = from_rows(dataset), from_rows(dataset.to_list())
    assert one.fingerprint == other.fingerprint
    assert one.types.tolist() == other.types.tolist() == [0, 0, 1, 0, 0, 1]
    assert one.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize("shape", ["numpy", "torch", None])
def test_formats_and_selections_are_read_as_they_stand(shape):
    dataset = make_dataset(label=[0, 1, 2]).with_format(shape).select([2, 0])
    tokens = from_rows(dataset)
    assert as_lists(tokens) == [[9, 10], [5, 6, 7]]
    assert tokens.labels.tolist() == [2, 0]


def test_rows_of_tensors_are_taken():
    rows = [dict(row) for row in make_dataset(labels=[0, 1, 2]).with_format("torch")]
    tokens = from_rows(rows)
    assert as_lists(tokens) == IDS
    assert tokens.labels.dtype == np.int64


def test_padding_comes_off():
    rows = {"input_ids": [[5, 6, 0], [7, 0, 0]], "attention_mask": [[1, 1, 0], [1, 0, 0]]}
    dataset = Dataset.from_dict({**rows, "token_type_ids": [[0, 1, 0], [1, 0, 0]]})
    tokens = from_rows(dataset)
    assert as_lists(tokens) == [[5, 6], [7]]
    assert tokens.types.tolist() == [0, 1, 1]


@pytest.mark.parametrize("mask", [[[0, 1, 1]], [[1, 0, 1]]])
def test_a_mask_that_is_not_padding_on_the_right_is_refused(mask):
    with pytest.raises(Unrepresentable, match="row 0"):
        from_rows(Dataset.from_dict({"input_ids": [[5, 6, 7]], "attention_mask": mask}))


def test_another_model_input_is_refused_and_another_column_left_out():
    dataset = make_dataset(position_ids=IDS, idx=[0, 1, 2], sentence=["a", "b", "c"])
    with pytest.raises(Unrepresentable, match="position_ids"):
        from_rows(dataset)
    assert as_lists(from_rows(dataset, inputs={"input_ids", "labels"})) == IDS


def test_rows_without_ids_are_refused():
    with pytest.raises(Unrepresentable, match=r"no column 'input_ids'.*'text'"):
        from_rows(Dataset.from_dict({"text": ["a"]}))


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(Unrepresentable, match="token_type_ids"):
        from_rows(make_dataset(token_type_ids=[[0], [0], [0, 0]]))


@pytest.mark.parametrize(
    "labels, expected",
    [
        ([2, 0, 1], np.array([2, 0, 1], np.int64)),
        ([True, False, True], np.array([1, 0, 1], np.int64)),
        ([0.5, 1.0, 2.0], np.array([0.5, 1.0, 2.0], np.float32)),
        ([[1, 0], [0, 0], [1, 1]], np.array([[1, 0], [0, 0], [1, 1]], np.float32)),
    ],
)
def test_labels_have_the_type_the_loss_takes(labels, expected):
    for rows in (make_dataset(labels=labels), make_dataset(labels=labels).to_list()):
        found = from_rows(rows).labels
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("labels", [[1, None, 0], [None, None, None], [[1.0], None, [0.0]]])
def test_a_missing_label_makes_the_rows_unlabelled(labels):
    assert from_rows(make_dataset(labels=labels)).labels is None


def test_labels_that_are_text_are_refused():
    with pytest.raises(Unrepresentable, match="label"):
        from_rows(make_dataset(label=["a", "b", "c"]))


def test_rows_without_labels_have_none():
    assert from_rows(make_dataset()).labels is None
