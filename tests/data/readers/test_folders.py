"""Folders with a file for each label, and files that are named after splits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data_files import as_csv, everything, labelled, load, text, write
from whet.data.examples import load_examples
from whet.errors import DataError

ROWS = labelled(40)
GOOD = "".join(f"{words}\n" for words, label in ROWS if label == "good")
BAD = "".join(f"{words}\n" for words, label in ROWS if label == "bad")


@pytest.mark.parametrize("names", [("bad.txt", "good.txt"), ("reviews.bad", "reviews.good"), ("bad", "good")])
def test_the_name_that_differs_is_the_label(tmp_path: Path, names: tuple[str, str]) -> None:
    for name, content in zip(names, (BAD, GOOD), strict=True):
        write(tmp_path / "data" / name, content)
    write(tmp_path / "data" / "README.md", "where they come from")
    examples = load(tmp_path / "data")
    assert sorted(everything(examples)) == sorted(ROWS)
    assert "The names of the files are the labels: bad, good." in examples.messages


def test_splits_may_hold_a_file_for_each_label(tmp_path: Path) -> None:
    for split, numbers in (("train", range(30)), ("test", range(30, 40))):
        for label in ("bad", "good"):
            lines = "".join(f"{ROWS[n][0]}\n" for n in numbers if ROWS[n][1] == label)
            write(tmp_path / "data" / split / f"{label}.txt", lines)
    assert load(tmp_path / "data", validation_share=0).origin["rows"] == {"train": 30, "test": 10}


def test_tables_without_a_label_of_their_own(tmp_path: Path) -> None:
    for label in ("bad", "good"):
        rows = [(n, words) for n, (words, own) in enumerate(ROWS) if own == label]
        write(tmp_path / "data" / f"{label}.csv", as_csv(rows, ("id", "comment")))
    assert sorted(everything(load(tmp_path / "data"))) == sorted(ROWS)


@pytest.mark.parametrize(
    "files",
    [
        {"bad.txt": BAD, "good.txt": GOOD, "picture.png": "x"},
        {"page1.txt": BAD, "page2.txt": GOOD},
        {"one.txt": "a single line\n", "two.txt": "another one\n"},
        {"a.pos": BAD, "b.neg": GOOD},
        {"other.csv": as_csv(ROWS), "rows.csv": as_csv(ROWS)},
    ],
)
def test_other_folders_are_refused_as_they_were(tmp_path: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        write(tmp_path / "data" / name, content)
    with pytest.raises(DataError, match="is a folder without train, validation or test files"):
        load(tmp_path / "data")


def test_a_changed_file_changes_the_examples(tmp_path: Path) -> None:
    write(tmp_path / "data" / "bad.txt", BAD)
    path = write(tmp_path / "data" / "good.txt", GOOD)
    before = load(tmp_path / "data").fingerprint
    write(path, GOOD + text(70) + "\n")
    assert load(tmp_path / "data").fingerprint != before


def test_text_files_are_split_by_their_names(tmp_path: Path) -> None:
    for split, numbers in (("train", range(30)), ("val", range(30, 36)), ("test", range(36, 40))):
        write(tmp_path / "data" / f"{split}.txt", "".join(f"{ROWS[n][0]};{ROWS[n][1]}\n" for n in numbers))
    assert load(tmp_path / "data").origin["rows"] == {"train": 30, "validation": 6, "test": 4}


def test_semicolons_in_plain_text_separate_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "".join(f"{text(n)}; {text(n + 50)}\n" for n in range(20)))
    assert load_examples(path, labelled=False).rows["test"].row(0)["text"] == f"{text(0)}; {text(50)}"
