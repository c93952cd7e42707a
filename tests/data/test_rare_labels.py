from __future__ import annotations

from typing import Any

import pytest

from tests.data_files import labelled, load, text
from whet.config import DataConfig
from whet.data.examples import Examples, load_examples
from whet.errors import DataError, UsageError
from whet.task import Task

ROWS = [*labelled(40), (text(50), "rare"), (text(51), "rare"), (text(52), "once")]


def columns(rows: Any = ROWS) -> Any:
    return tuple(map(list, zip(*rows, strict=True)))


def by_row(examples: Examples) -> dict[int, Any]:
    found = {}
    for split in examples.rows.values():
        found.update(zip(split.column("row"), split.column("label"), strict=True))
    return found


def test_labels_with_fewer_rows_are_left_out_with_their_rows_and_it_is_said() -> None:
    examples = load(columns(), min_rows=2)
    assert examples.task == Task("multiclass", ("bad", "good", "rare"))
    assert set(by_row(examples)) == set(range(1, 43))
    line = "Labels with fewer than 2 training rows, 1 of 4, are left out (--min-rows --rare): 'once' (1)."
    assert line in examples.messages
    assert examples.origin["rare_labels"] == {"once": 1}
    assert examples.origin["rare_rows"] == {"train": 1}


def test_two_labels_that_stay_are_a_binary_task() -> None:
    assert load(columns(), min_rows=3).task == Task("binary", ("bad", "good"))


def test_rare_labels_are_merged_into_one() -> None:
    examples = load(columns(), rare="other")
    assert examples.task.labels == ("bad", "good", "other")
    assert [by_row(examples)[row] for row in (41, 42, 43)] == [2, 2, 2]


def test_rare_labels_join_a_label_that_is_there() -> None:
    examples = load(columns([*ROWS, *((text(60 + n), "other") for n in range(5))]), rare="other")
    assert examples.task.labels == ("bad", "good", "other")
    assert list(by_row(examples).values()).count(2) == 8


def test_min_rows_says_what_is_rare() -> None:
    assert load(columns(), rare="other", min_rows=2).task.labels == ("bad", "good", "rare", "other")


def test_nothing_rare_changes_nothing() -> None:
    plain, asked = load(columns(labelled(40))), load(columns(labelled(40)), rare="other", min_rows=5)
    assert (asked.task, asked.fingerprint) == (plain.task, plain.fingerprint)
    assert asked.messages == plain.messages


@pytest.mark.parametrize("one_column", [True, False])
def test_of_several_labels_a_row_only_the_rare_one_goes(one_column: bool) -> None:
    names = ("a", "b", "c", "d")
    on = [{"a", "b"} if n % 2 else {"b"} for n in range(40)] + [{"a", "c"}, {"d"}, {"c", "d"}]
    data: dict[str, Any] = {"text": [text(n) for n in range(43)]}
    if one_column:
        data["label"] = [sorted(labels) for labels in on]
    else:
        data |= {name: [int(name in labels) for labels in on] for name in names}
    label = "label" if one_column else ",".join(names)
    dropped, merged = load(data, label=label, min_rows=5), load(data, label=label, min_rows=5, rare="other")
    assert dropped.task.labels == ("a", "b")
    assert [by_row(dropped)[row] for row in (41, 42, 43)] == [[1, 0], [0, 0], [0, 0]]
    assert merged.task.labels == ("a", "b", "other")
    assert [by_row(merged)[row] for row in (40, 41, 42, 43)] == [[1, 1, 0], [1, 0, 1], [0, 0, 1], [0, 0, 1]]


def test_more_labels_than_a_classifier_learns_can_be_merged() -> None:
    rows = [*labelled(20), *((text(90 + n), f"one {n}") for n in range(30))]
    with pytest.raises(DataError, match=r"min_rows=3.*rare='other'"):
        load(columns(rows))
    assert load(columns(rows), rare="other").task.labels == ("bad", "good", "other")


def test_no_label_with_enough_rows_is_refused() -> None:
    with pytest.raises(DataError, match="no label has enough rows"):
        load(columns(labelled(40)), min_rows=1000)


def test_rare_labels_of_given_files_go_too() -> None:
    train, rest = ({"text": [t for t, _ in rows], "label": [y for _, y in rows]} for rows in (ROWS, ROWS[-1:]))
    examples = load({"train": train, "validation": {k: v[:20] for k, v in train.items()}, "test": rest}, rare="other")
    assert examples.rows["test"].column("label") == [examples.task.labels.index("other")]


def test_a_model_with_merged_labels_reads_unknown_ones_as_merged() -> None:
    task = Task("multiclass", ("bad", "good", "other"))
    config = DataConfig(rare="other")
    examples = load_examples(columns(), config, labelled=False, task=task)
    assert [by_row(examples)[row] for row in (1, 41, 43)] == [0, 2, 2]
    with pytest.raises(UsageError, match="settled"):
        load_examples(columns(), DataConfig(min_rows=3), labelled=False, task=task)
    with pytest.raises(UsageError, match="no label of"):
        load_examples(columns(), DataConfig(rare="rest"), labelled=False, task=task)
