"""Lines that begin with their label are cut; lines of plain text are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data_files import everything, labelled, load, text, write
from whet.config import DataConfig
from whet.data.examples import load_examples
from whet.data.readers.source import read_file
from whet.errors import DataError

ROWS = labelled(40)


def lines(path: Path, form: str, rows: list[tuple[str, ...]] = ROWS) -> Path:
    return write(path, "".join(form.format(text=words, label=label) + "\n" for words, label in rows))


@pytest.mark.parametrize(
    ("form", "labels"),
    [
        ("__label__{label} {text}", ("bad", "good")),
        ("KIND:{label} {text}", ("KIND:bad", "KIND:good")),
    ],
)
@pytest.mark.parametrize("name", ["rows", "rows.txt", "rows.label"])
def test_the_first_word_is_the_label(tmp_path: Path, name: str, form: str, labels: tuple[str, ...]) -> None:
    examples = load(lines(tmp_path / name, form))
    assert examples.task.labels == labels
    assert [words for words, _ in everything(examples)] == [words for words, _ in ROWS]


def test_numbers_and_capitals_are_labels_too(tmp_path: Path) -> None:
    for first in (("0", "1"), ("SPAM", "HAM")):
        rows = [(words, first[label == "bad"]) for words, label in ROWS]
        assert set(load(lines(tmp_path / first[0], "{label} {text}", rows)).task.labels) == set(first)


def test_several_labels_make_a_multilabel_task(tmp_path: Path) -> None:
    rows = [(words, f"{label} __label__{'odd' if n % 3 else 'even'}") for n, (words, label) in enumerate(ROWS)]
    examples = load(lines(tmp_path / "rows.txt", "__label__{label} {text}", rows))
    assert examples.task.kind == "multilabel"
    assert examples.task.labels == ("bad", "even", "good", "odd")


def test_plain_words_are_a_label_only_where_that_is_said(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.txt", "{label} {text}")
    with pytest.raises(DataError, match="first word of each line is its label") as caught:
        load(path)
    assert caught.value.go_on == ("--delimiter", "space")
    assert load(path, delimiter="space").task.labels == ("bad", "good")
    unlabelled = load_examples(path, labelled=False)
    assert unlabelled.rows["test"].row(0)["text"] == f"bad {ROWS[0][0]}"


@pytest.mark.parametrize("first", ["The", "I", "What", "1.", "2024"])
def test_sentences_keep_their_first_word(tmp_path: Path, first: str) -> None:
    path = write(tmp_path / "rows.txt", "".join(f"{first if n % 2 else 'A'} {text(n)}\n" for n in range(30)))
    assert load_examples(path, labelled=False).rows["test"].row(1)["text"] == f"{first} {text(1)}"


def test_numbered_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.txt", "".join(f"{n} {text(n)}\n" for n in range(1, 31)))
    assert load_examples(path, labelled=False).rows["test"].row(0)["text"] == f"1 {text(1)}"


def test_one_column_is_there_for_the_asking(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.txt", "__label__{label} {text}")
    examples = load_examples(path, DataConfig(delimiter="none"), labelled=False)
    assert examples.rows["test"].row(0)["text"].startswith("__label__bad ")


LABEL = st.text(st.characters(categories=("L", "N"), include_characters="_-|#"), min_size=1, max_size=6)
TEXT = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=8).filter(
    lambda word: not word.startswith("__label__")
)


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(st.tuples(st.lists(LABEL, max_size=3), st.lists(TEXT, min_size=1, max_size=4)), min_size=10))
def test_what_is_written_as_fasttext_does_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[list[str], list[str]]]
) -> None:
    rows = [(labels or ["none"], words) for labels, words in rows]
    lines = [" ".join([*(f"__label__{label}" for label in labels), *words]) for labels, words in rows]
    path = write(tmp_path_factory.mktemp("drawn") / "rows.txt", "\n".join(lines) + "\n")
    split = read_file(path, DataConfig(), path.parent)
    table = [row for batch in split.read(None) for row in batch.to_pylist()]
    assert [row["text"] for row in table] == [" ".join(words) for _, words in rows]
    several = any(len(labels) > 1 for labels, _ in rows)
    assert [row["label"] for row in table] == [labels if several else labels[0] for labels, _ in rows]
