"""Each rule of --drop, and what holds for what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data_files import Rows, as_csv, labelled, load, text, write
from whet.config import DROPS, DataConfig
from whet.data.audit.audit import audit
from whet.data.examples import Examples, load_examples
from whet.errors import DataError, UsageError

ROWS = labelled(40)
NEAR = "the quick brown fox jumps over the lazy dog near the old stone bridge at dawn"


def splits(folder: Path, **rows: Rows) -> Path:
    for name, own in rows.items():
        write(folder / f"{name}.csv", as_csv(own))
    return folder


def dropped(examples: Examples) -> dict[str, dict[str, list[int]]]:
    found = examples.origin["dropped"]
    return {split: {rule: each["first"] for rule, each in rules.items()} for split, rules in found.items()}


@pytest.mark.parametrize(
    ("rule", "files", "expected"),
    [
        ("empty", {"train": [("", "bad"), *ROWS, (" \t", "good")]}, {"train": {"empty": [1, 42]}}),
        (
            "unlabelled",
            {"train": [*ROWS, (text(90), "")], "test": [(text(91), ""), (text(92), "bad")]},
            {"train": {"unlabelled": [41]}},
        ),
        (
            "conflict",
            {"train": [*ROWS, (text(0).upper(), "good")], "test": [(text(0), "bad"), (text(92), "bad")]},
            {"train": {"conflict": [1, 41]}, "test": {"conflict": [1]}},
        ),
        (
            "leak",
            {"train": ROWS, "validation": [ROWS[3], (text(90), "bad")], "test": [(text(90), "bad"), ROWS[5]]},
            {"train": {"leak": [4, 6]}, "validation": {"leak": [2]}},
        ),
        ("duplicate", {"train": [*ROWS, ROWS[7], ROWS[7]]}, {"train": {"duplicate": [41, 42]}}),
        (
            "near-duplicate",
            {"train": [(NEAR, "bad"), *ROWS, (f"{NEAR} now", "bad")], "test": [(f"{NEAR} today", "bad")]},
            {"train": {"near-duplicate": [42]}},
        ),
    ],
)
def test_a_rule_takes_these_rows(
    tmp_path: Path, rule: str, files: dict[str, Rows], expected: dict[str, dict[str, list[int]]]
) -> None:
    examples = load(splits(tmp_path / "data", **files), drop=(rule,))
    assert dropped(examples) == expected
    given = {name: "train" if came == "made" else name for name, came in examples.origin["splits"].items()}
    left = {(given[name], row) for name, rows in examples.rows.items() for row in rows.column("row")}
    gone = {(split, row) for split, rules in expected.items() for rows in rules.values() for row in rows}
    assert left == {(name, row) for name, rows in files.items() for row in range(1, len(rows) + 1)} - gone


def test_other_rules_give_other_examples(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv([*ROWS, ROWS[0], (f"{text(50)} &amp;", "bad")]))
    settings: list[dict[str, Any]] = [{}, {"drop": ("duplicate",)}, {"repair": ("text",)}]
    assert len({load(path, **each).fingerprint for each in settings}) == 3


def test_only_rows_like_one_that_stays_are_near_duplicates(tmp_path: Path) -> None:
    longer = f"{NEAR} with three more"
    rows = [(NEAR, "bad"), (longer, "bad"), (longer, "bad"), (f"{longer} and again three", "bad"), *ROWS]
    examples = load(write(tmp_path / "a.csv", as_csv(rows)), drop=("near-duplicate",))
    assert dropped(examples) == {"train": {"near-duplicate": [2, 3]}}


def test_drop_empty_is_the_rule_of_that_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv([*ROWS, ("", "bad")]))
    one, other = load(path, drop_empty=True), load(path, drop=("empty",))
    assert one.fingerprint == other.fingerprint
    assert one.rows["train"].file == other.rows["train"].file  # the same entry of the cache


def test_what_is_dropped_is_listed_with_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    write(folder / "train-1.csv", as_csv(ROWS))
    write(folder / "train-2.csv", as_csv([(text(50), "bad"), ROWS[0]]))
    examples = load(folder, drop=("duplicate",))
    assert examples.dropped is not None
    assert examples.dropped.read_text().splitlines()[1:] == ["train,42,train-2.csv,2,duplicate"]


def test_rows_that_stay_keep_their_numbers_in_errors(tmp_path: Path) -> None:
    rows = [("", "1.5"), *((words, "2.5") for words, _ in ROWS), ("long " * 300_000, "1.5")]
    with pytest.raises(DataError, match=r"a\.csv:42"):
        load(write(tmp_path / "a.csv", as_csv(rows)), drop=("empty",), max_field_mb=1.2)


def test_minus_one_is_dropped_as_unlabelled(tmp_path: Path) -> None:
    rows = [(words, "10"[label == "bad"]) for words, label in ROWS]
    path = write(tmp_path / "a.csv", as_csv([*rows, (text(99), "-1")]))
    with pytest.raises(DataError) as caught:
        load(path, drop=("leak",))
    assert caught.value.go_on == ("--drop", "leak,unlabelled")
    assert load(path, drop=("unlabelled",)).task.labels == ("0", "1")


@pytest.mark.parametrize(
    ("files", "drop", "message", "go_on"),
    [
        (
            {"train": [*ROWS, *[(text(0), label) for label in ("odd", "odd")]]},
            ("conflict", "duplicate"),
            "drop='conflict' leaves no training row of 'odd'",
            ("--min-rows", "2"),
        ),
        (
            {"train": [*[row for row in ROWS if row[1] == "good"], (text(0), "bad"), (text(0), "good")]},
            ("conflict", "duplicate"),
            "leaves no training row of 'bad', and fewer than two labels. Add rows, or leave conflict out",
            ("--drop", "duplicate"),
        ),
        (
            {"train": [*ROWS, ("", "odd")]},
            ("all",),
            "drop='empty' leaves no training row of 'odd'",
            ("--min-rows", "2"),
        ),
        (
            {"train": ROWS, "test": [(text(90), "bad"), (text(90), "good")]},
            ("conflict", "duplicate"),
            "drop='conflict' leaves no row of the test split.*leave out less: drop='duplicate'",
            ("--drop", "duplicate"),
        ),
        (
            {"train": ROWS[:2], "test": [*ROWS[:2], (text(9), "bad")]},
            ("leak",),
            "drop='leak' leaves no row of the train split",
            (),
        ),
        ({"train": ROWS, "test": [("", "bad")]}, ("empty",), "drop='empty' leaves no row of the test split", ()),
    ],
)
def test_a_split_or_a_label_is_not_emptied(
    tmp_path: Path, files: dict[str, Rows], drop: tuple[str, ...], message: str, go_on: tuple[str, ...]
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load(splits(tmp_path / "data", **files), drop=drop)
    assert caught.value.go_on == go_on


def test_an_unknown_validation_label_is_not_taken_for_none(tmp_path: Path) -> None:
    source = splits(tmp_path / "data", train=ROWS, validation=[(text(90), "strange"), (text(91), "bad")])
    with pytest.raises(DataError, match="training never saw: 'strange'"):
        load(source, drop=("all",))


def test_rules_are_checked_by_name() -> None:
    with pytest.raises(UsageError, match="Did you mean 'leak'"):
        DataConfig(drop=("leaks",))
    with pytest.raises(UsageError, match="repair is 'labels'"):
        DataConfig(repair=("labels",))


def test_new_data_of_a_model_is_left_out_alike(tmp_path: Path) -> None:
    path = write(tmp_path / "new.csv", as_csv([*ROWS, ROWS[0], (text(1), "bad"), (text(99), "")]))
    task = load(write(tmp_path / "a.csv", as_csv(ROWS))).task
    examples = load_examples(path, DataConfig(drop=("all",)), labelled=False, task=task)
    assert dropped(examples) == {"test": {"conflict": [2, 42], "duplicate": [41]}}
    assert examples.rows["test"].column("row") == [1, *range(3, 41), 43]


SMALL = st.tuples(
    st.sampled_from([*(text(number) for number in range(4)), text(0).upper(), "", f"{NEAR} one", f"{NEAR} two"]),
    st.sampled_from(["bad", "good", ""]),
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(train=st.lists(SMALL, max_size=12), test=st.lists(SMALL, max_size=5), regression=st.booleans())
def test_what_is_left_checks_clean_and_dropping_again_takes_nothing(
    tmp_path_factory: pytest.TempPathFactory, train: Rows, test: Rows, regression: bool
) -> None:
    numbers = {"bad": "1.5", "good": "4.5", "": ""}
    files: dict[str, Any] = {
        "train": [*labelled(40, ("bad", "good"))[10:], *train],
        "validation": [(text(200), "bad"), (text(201), "good"), *train[::2]],
        "test": [(text(300), "bad"), (text(301), "good"), *test],
    }
    if regression:
        files = {name: [(words, numbers[label]) for words, label in rows] for name, rows in files.items()}
    folder = tmp_path_factory.mktemp("drawn")
    once = load(splits(folder / "once", **files), drop=DROPS)
    left = {name: [files[name][row - 1] for row in rows.column("row")] for name, rows in once.rows.items()}
    assert {each.code for each in audit(once).findings} <= {"dropped", "unlabelled", "near-leak", "imbalance"}
    again = load(splits(folder / "twice", **left), drop=DROPS)
    assert dropped(again) == {}
    assert again.rows["train"].column("text") == once.rows["train"].column("text")
