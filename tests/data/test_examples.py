from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.data_files import as_csv, everything, labelled, load, text, write
from whet.config import DataConfig
from whet.data.examples import load_examples
from whet.errors import DataError
from whet.task import Task

ROWS = labelled()


def test_columns_and_rows_of_a_split(tmp_path: Path) -> None:
    examples = load(write(tmp_path / "a.csv", as_csv(ROWS)), validation_share=0, test_share=0)
    first = examples.splits["train"][0]
    assert first == {"text": ROWS[0][0], "label": 0, "row": 1}
    assert str(examples.splits["train"].features["label"].dtype) == "int64"


def test_row_numbers_follow_the_source_through_a_split(tmp_path: Path) -> None:
    examples = load(write(tmp_path / "a.csv", as_csv(ROWS)))
    for split in examples.splits.values():
        for row in split:
            assert ROWS[row["row"] - 1][0] == row["text"]


def test_second_load_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.csv", as_csv(ROWS))
    before = load(path)
    monkeypatch.setattr("whet.data.examples.read_source", None)
    after = load(path)
    assert (after.fingerprint, after.messages, after.task) == (before.fingerprint, before.messages, before.task)


def test_cache_is_never_stale(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv(ROWS))
    before = load(path)
    stat = path.stat()
    write(path, as_csv([(ROWS[0][0].upper(), ROWS[0][1]), *ROWS[1:]]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert everything(load(path))[0][0] == ROWS[0][0].upper()
    assert load(path).fingerprint != before.fingerprint


def test_fingerprint_is_of_the_content_not_of_the_file(tmp_path: Path) -> None:
    one = load(write(tmp_path / "a.csv", as_csv(ROWS)))
    other = load(write(tmp_path / "b.tsv", as_csv(ROWS, delimiter="\t")))
    assert one.fingerprint == other.fingerprint


def test_settings_make_other_examples(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv(ROWS))
    assert load(path, split_seed=1).fingerprint != load(path, split_seed=2).fingerprint


def test_nothing_half_written_stays_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError):
        load(write(tmp_path / "a.csv", as_csv([*ROWS, ("", "bad")])))
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_files_for_validation_and_test(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.csv", as_csv(ROWS[n::3])) for n in range(3)]
    examples = load(paths[0], validation=str(paths[1]), test=str(paths[2]))
    assert examples.splits.num_rows == {"train": 14, "validation": 13, "test": 13}


def test_labels_of_a_trained_model_are_kept_for_new_data(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv(ROWS))
    task = Task("multiclass", ("good", "neutral", "bad"))
    split = load_examples(path, labelled=False, task=task).splits["test"]
    assert split["label"][:2] == [2, 0]


def test_new_data_of_one_label_can_be_scored() -> None:
    source = {"text": [text(1), text(2)], "label": ["good", "good"]}
    examples = load_examples(source, labelled=False, task=Task("binary", ("bad", "good")))
    assert examples.splits["test"]["label"][:] == [1, 1]


def test_new_data_with_several_labels_in_a_cell() -> None:
    source = {"text": [text(1), text(2)], "label": ["a;c", "b"]}
    examples = load_examples(source, labelled=False, task=Task("multilabel", ("a", "b", "c")))
    assert examples.splits["test"]["label"][:] == [[1, 0, 1], [0, 1, 0]]


def test_labels_that_a_trained_model_does_not_have_are_counted() -> None:
    source = {"text": [text(1), text(2)], "label": ["good", "odd"]}
    examples = load_examples(source, labelled=False, task=Task("binary", ("bad", "good")))
    assert examples.splits["test"]["label"][:] == [1, None]
    assert examples.origin["unseen_labels"] == {"test": {"odd": 1}}


def test_unlabelled_data_with_a_named_text_column(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv(ROWS, header=("quote", "other")))
    examples = load_examples(path, DataConfig(text="quote"), labelled=False)
    assert examples.splits["test"]["text"][:] == [row[0] for row in ROWS]


def test_empty_rows_are_left_out_when_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv([ROWS[0], ("  ", "bad"), *ROWS[1:]]))
    examples = load(path, drop_empty=True)
    assert everything(examples) == ROWS
    assert examples.origin["dropped"] == {"train": {"empty": {"rows": 1, "first": [2]}}}


def test_other_splits_are_left_out_and_it_is_said() -> None:
    table = {"text": [text(n) for n in range(40)], "label": ["a", "b"] * 20}
    examples = load({"train": table, "unsupervised": table})
    assert "unsupervised" not in examples.splits
    assert "'unsupervised' is left out" in examples.messages[0]


def test_memory_stays_flat_over_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    monkeypatch.setattr("whet.data.readers.csv_files.BATCH_ROWS", 500)
    monkeypatch.setattr("whet.data.columns.PROFILE_BYTES", 500_000)
    path = write(tmp_path / "a.csv", as_csv((f"{text(n)} {'x' * 2000}", n % 2) for n in range(10_000)))
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    load(path)
    assert pool.max_memory() - before < path.stat().st_size / 2
