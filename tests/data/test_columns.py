from __future__ import annotations

from typing import Any

import pytest

from tests.data_files import load, text
from whet.errors import DataError

COUNT = 40
TEXTS = [text(number) for number in range(COUNT)]
OTHERS = [text(number + COUNT) for number in range(COUNT)]
LABELS = ["no" if number % 2 else "yes" for number in range(COUNT)]
NUMBERS = list(range(COUNT))


def columns(table: dict[str, list[Any]], **settings: Any) -> tuple[str, str | None, str | None]:
    found = load(table, **settings).columns
    return found.text, found.pair, found.label


@pytest.mark.parametrize(
    "first, second",
    [("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "sentence"), ("#1 String", "#2 String")],
)
def test_pairs_are_known_by_name(first: str, second: str) -> None:
    table = {"idx": NUMBERS, second: OTHERS, first: TEXTS, "label": LABELS}
    assert columns(table) == (first, second, "label")


def test_names_are_compared_without_case_and_blanks() -> None:
    assert columns({"Gold-Label": LABELS, "Review Text": TEXTS}) == ("Review Text", None, "Gold-Label")


def test_label_wins_over_lesser_names() -> None:
    assert columns({"text": TEXTS, "label": LABELS, "score": NUMBERS, "label_text": LABELS})[2] == "label"


def test_foreign_names_are_understood_by_content() -> None:
    assert columns({"Nummer": NUMBERS, "Urteil": LABELS, "Satz": TEXTS}) == ("Satz", None, "Urteil")


def test_single_words_can_be_texts() -> None:
    names = [f"name{number}" for number in range(COUNT)]
    assert columns({"a": names, "b": LABELS}) == ("a", None, "b")


def test_two_possible_texts_are_listed() -> None:
    with pytest.raises(DataError, match=r"text: title, description.*--text title --pair description"):
        load({"title": TEXTS, "description": OTHERS, "label": LABELS})


def test_two_possible_labels_are_listed() -> None:
    with pytest.raises(DataError, match=r"label: Farbe, Form.*--label Farbe,Form"):
        load({"text": TEXTS, "Farbe": LABELS, "Form": LABELS[::-1]})


def test_flags_decide() -> None:
    table = {"title": TEXTS, "description": OTHERS, "Farbe": LABELS, "Form": LABELS[::-1]}
    assert columns(table, text="description", label="Form") == ("description", None, "Form")
    assert columns(table, text="title", pair="description", label="Form")[1] == "description"


def test_missing_column_lists_those_there_are() -> None:
    with pytest.raises(DataError, match=r"'body' is not there.*Columns: text, label"):
        load({"text": TEXTS, "label": LABELS}, text="body")


def test_one_column_cannot_be_two_things() -> None:
    with pytest.raises(DataError, match="named twice"):
        load({"text": TEXTS, "label": LABELS}, text="text", pair="text")


def test_no_label_lists_the_columns() -> None:
    with pytest.raises(DataError, match=r"looks like a label.*Columns: idx, text"):
        load({"idx": NUMBERS, "text": TEXTS})


def test_numbers_are_no_text() -> None:
    with pytest.raises(DataError, match="whole numbers, not text"):
        load({"text": NUMBERS, "label": LABELS}, text="text")


def test_ids_are_neither_text_nor_label() -> None:
    assert columns({"uuid": [f"{n:08x}" for n in range(COUNT)], "w": TEXTS, "z": LABELS}) == ("w", None, "z")


def test_without_labels_only_the_text_is_needed() -> None:
    from whet.data.examples import load_examples

    examples = load_examples({"text": TEXTS}, labelled=False)
    assert list(examples.splits) == ["test"]
    assert examples.splits["test"].column_names == ["text", "row"]
