from __future__ import annotations

import shlex
from typing import Any

import pytest

from tests.data_files import load, text
from whet.data.columns import Profile
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
    with pytest.raises(DataError, match=r"text: title, description.*text='title', pair='description'"):
        load({"title": TEXTS, "description": OTHERS, "label": LABELS})


def test_two_possible_labels_are_listed() -> None:
    with pytest.raises(DataError, match=r"label: Farbe, Form\. Choose one: label='NAME'$"):
        load({"text": TEXTS, "Farbe": LABELS, "Form": LABELS[::-1]})


@pytest.mark.parametrize("values", [[0, 1], ["0", "1"], [True, False], [0.0, 1.0]])
def test_all_label_columns_of_zeros_and_ones_are_suggested(values: list[Any]) -> None:
    names = ["sport", "food", "money", "far travel"]
    table = {"text": TEXTS, "tone": LABELS, **dict.fromkeys(names, values * (COUNT // 2))}
    with pytest.raises(DataError) as caught:
        load(table)
    _, _, pasted = caught.value.hint.partition("multi-label task: --label ")
    assert load(table, label=shlex.split(pasted)[0]).task.labels == tuple(names)


@pytest.mark.parametrize("day", ["2024-02-{:02}", "{}.3.2024", "1/{}/24 08:15", "2024-02-{:02}T08:15:00Z"])
def test_dates_are_no_labels_beside_a_yes_no_column(day: str) -> None:
    days = [day.format(1 + number % 4) for number in range(COUNT)]
    assert columns({"when": days, "Satz": TEXTS, "Urteil": LABELS}) == ("Satz", None, "Urteil")


def test_dates_are_no_text() -> None:
    days = [f"2024-{1 + n // 28:02}-{1 + n % 28:02}" for n in range(COUNT)]
    assert columns({"when": days, "Satz": TEXTS, "Urteil": LABELS}) == ("Satz", None, "Urteil")


def test_given_names_match_without_regard_to_case() -> None:
    table = {"Body": TEXTS, "Title": OTHERS, "Verdict": LABELS, "text": OTHERS}
    assert columns(table, text="body", pair="TITLE", label="verdict") == ("Body", "Title", "Verdict")


def test_a_name_that_case_alone_does_not_settle_is_not_taken() -> None:
    with pytest.raises(DataError, match="'body' is not there"):
        load({"Body": TEXTS, "BODY": OTHERS, "label": LABELS}, text="body")


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


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([f"2024-{1 + n % 12:02}-{1 + n % 28:02}" for n in range(COUNT)], "it holds dates"),
        ([f"Mon Apr {1 + n % 28:02} 22:19:45 PDT 2009" for n in range(COUNT)], "it holds dates"),
        (OTHERS, "it holds free text"),
        ([7000 + n for n in range(COUNT)], "another whole number in every row"),
        ([f"ticket-{n}" for n in range(COUNT)], "40 different values in 40 rows"),
    ],
)
def test_a_label_by_name_that_is_none_is_passed_over_with_a_sentence(values: list[Any], why: str) -> None:
    examples = load({"text": TEXTS, "type": values, "verdict": LABELS})
    assert examples.columns.label == "verdict"
    assert any(line.startswith("'type' is not taken as the label: ") and why in line for line in examples.messages)
    with pytest.raises(DataError, match=f"no column that looks like a label.*'type' is not taken.*{why}"):
        load({"text": TEXTS, "type": values})


def test_a_label_that_is_named_is_taken_whatever_it_holds() -> None:
    with pytest.raises(DataError, match="40 different values"):
        load({"text": TEXTS, "type": [f"ticket-{n}" for n in range(COUNT)]}, label="type")
    tags = [f"a|t{n % 13}|u{n % 11}" for n in range(COUNT)]
    assert load({"text": TEXTS, "tags": tags}).task.kind == "multilabel"


def test_the_last_part_of_a_dotted_name_counts() -> None:
    table = {"reviews.text": TEXTS, "reviews.rating": [n % 5 for n in range(COUNT)], "shop.kind": LABELS}
    assert columns(table) == ("reviews.text", None, "reviews.rating")
    assert columns({**table, "rating": LABELS})[2] == "rating"


def test_a_column_with_one_value_is_no_candidate_beside_others() -> None:
    table = {"text": TEXTS, "query": ["NO_QUERY"] * COUNT, "a": LABELS, "star": ["", "*"] * (COUNT // 2)}
    assert columns({**table, "text": TEXTS})[2] == "a"


def test_a_refusal_suggests_the_likeliest() -> None:
    def suggested(table: dict[str, list[Any]]) -> tuple[str, ...]:
        with pytest.raises(DataError) as caught:
            load(table)
        return caught.value.go_on

    confidence = [n / COUNT for n in range(COUNT)]
    assert suggested({"confidence": confidence, "mood": LABELS, "words": TEXTS}) == ("--label", "mood")
    assert suggested({"title": [each[:9] for each in TEXTS], "description": TEXTS, "label": LABELS})[1] == "description"
    switches = {name: [n % count == 0 for n in range(COUNT)] for name, count in (("toxic", 2), ("rude", 3))}
    assert suggested({"comment": TEXTS, **switches}) == ("--label", "toxic,rude")


@pytest.mark.parametrize(
    ("rows", "distinct", "words", "text", "prose", "label"),
    [
        (100, 51, 1.0, True, False, False),
        (100, 50, 1.0, False, False, True),
        (100, 3, 2.5, True, False, True),
        (100, 3, 2.4, False, False, True),
        (100, 51, 5.0, True, True, False),
        (100, 50, 5.0, True, False, False),
        (100, 50, 4.9, True, False, True),
        (30, 20, 1.0, False, False, False),
        (30, 21, 1.0, True, False, False),
        (3, 2, 1.0, False, False, True),
        (3, 3, 1.0, False, False, False),
        (900, 200, 1.0, False, False, True),
        (900, 201, 1.0, False, False, False),
    ],
)
def test_what_a_column_looks_like(rows: int, distinct: int, words: float, text: bool, prose: bool, label: bool) -> None:
    found = Profile("Spalte", "text", rows, distinct, words, numeric=False)
    assert (found.like_text, found.like_prose, found.like_label) == (text, prose, label)


@pytest.mark.parametrize(("kind", "rows", "distinct", "is_id"), [
    ("whole", 20, 20, True), ("whole", 19, 19, False), ("whole", 20, 19, False), ("number", 20, 20, False),
])  # fmt: skip
def test_numbers_that_are_all_different_count_rows(kind: str, rows: int, distinct: int, is_id: bool) -> None:
    assert Profile("Spalte", kind, rows, distinct, 1.0, numeric=True).is_id is is_id


def test_two_columns_with_names_of_labels_are_listed() -> None:
    with pytest.raises(DataError, match=r"the label: class, topic\. Choose one"):
        load({"text": TEXTS, "class": LABELS, "topic": LABELS})
