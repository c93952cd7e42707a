from __future__ import annotations

import gzip
import io
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data_files import as_csv, everything, labelled, load, text, write
from whet.config import DataConfig
from whet.data.readers.source import SUFFIXES, find_source
from whet.errors import DataError, EnvironmentFault

ROWS = labelled()
TABLE = {"text": [row[0] for row in ROWS], "label": [row[1] for row in ROWS]}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_is_found(tmp_path: Path, delimiter: str) -> None:
    path = write(tmp_path / "a.csv", as_csv(ROWS, delimiter=delimiter))
    assert everything(load(path)) == ROWS


def test_two_columns_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", as_csv(ROWS, header=(), delimiter="\t"))
    examples = load(path)
    assert everything(examples) == ROWS
    assert examples.columns.text == "column_1"


def test_semicolons_bom_and_quoted_newlines(tmp_path: Path) -> None:
    rows = [(f'{text(n)}; "so\nto say"', label) for n, (_, label) in enumerate(ROWS)]
    path = write(tmp_path / "a.csv", "\ufeff" + as_csv(rows, delimiter=";"))
    assert everything(load(path)) == rows


def test_quotes_in_a_tab_file_belong_to_the_text(tmp_path: Path) -> None:
    rows = [(f'" {first} " said he' if n % 3 == 0 else first, label) for n, (first, label) in enumerate(ROWS)]
    content = "text\tlabel\n" + "".join(f"{first}\t{label}\n" for first, label in rows)
    examples = load(write(tmp_path / "a.tsv", content))
    assert everything(examples) == rows
    assert "quotes kept as text" in examples.messages[0]


def test_quotes_escaped_by_a_backslash(tmp_path: Path) -> None:
    content = "text,label\n" + "".join(f'"\\"{first}\\", yes",{label}\n' for first, label in ROWS)
    expected = [(f'"{first}", yes', label) for first, label in ROWS]
    assert everything(load(write(tmp_path / "a.csv", content))) == expected


def test_blank_before_a_quoted_field(tmp_path: Path) -> None:
    content = "label, text\n" + "".join(f'{label}, "{first}, yes"\n' for first, label in ROWS)
    assert everything(load(write(tmp_path / "a.csv", content)))[0] == (f"{ROWS[0][0]}, yes", "bad")


def test_doubtful_delimiter_lists_the_candidates(tmp_path: Path) -> None:
    content = "".join(f"{first};x,{label}\n" for first, label in ROWS)
    with pytest.raises(DataError, match=r"comma .* semicolon"):
        load(write(tmp_path / "a.csv", content))


def test_doubtful_header_asks(tmp_path: Path) -> None:
    content = "Wald,Wiese\n" + "".join(f"{first},{first[::-1]}\n" for first, _ in ROWS)
    with pytest.raises(DataError, match="header"):
        load(write(tmp_path / "a.csv", content))


def test_lines_may_end_as_on_other_systems(tmp_path: Path) -> None:
    for name, end in (("dos", "\r\n"), ("mac", "\r")):
        path = write(tmp_path / f"{name}.csv", as_csv(ROWS).replace("\n", end))
        assert everything(load(path)) == ROWS


def test_compressed_files(tmp_path: Path) -> None:
    content = as_csv(ROWS).encode()
    zipped = write(tmp_path / "a.csv.gz", gzip.compress(content[:500]) + gzip.compress(content[500:]))
    zstd = write(tmp_path / "a.csv.zst", pa.Codec("zstd").compress(content, asbytes=True))
    assert everything(load(zipped)) == everything(load(zstd)) == ROWS


def test_truncated_gzip_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv.gz", gzip.compress(as_csv(labelled(400)).encode())[:-200])
    with pytest.raises(DataError, match="compressed content is broken"):
        load(path)


def test_json_lines_with_nested_fields(tmp_path: Path) -> None:
    lines = [json.dumps({"meta": {"by": {"id": n}}, "text": t, "label": y}) for n, (t, y) in enumerate(ROWS)]
    assert everything(load(write(tmp_path / "a.jsonl", "\n".join(lines)))) == ROWS


@pytest.mark.parametrize(
    "value",
    [[dict(zip(TABLE, row, strict=True)) for row in ROWS], TABLE, {"data": [{"text": t, "label": y} for t, y in ROWS]}],
)
def test_json_of_other_shapes(tmp_path: Path, value: Any) -> None:
    assert everything(load(write(tmp_path / "a.json", json.dumps(value, indent=1)))) == ROWS


def test_json_fields_that_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.data.readers.object_rows.BATCH_ROWS", 10)
    lines = [json.dumps({"text": t, "label": y} | ({"extra": n} if n > 30 else {})) for n, (t, y) in enumerate(ROWS)]
    assert everything(load(write(tmp_path / "a.jsonl", "\n".join(lines)))) == ROWS


def test_parquet_and_arrow(tmp_path: Path) -> None:
    table = pa.table(TABLE)
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    assert everything(load(tmp_path / "a.parquet")) == everything(load(tmp_path / "b.arrow")) == ROWS


def test_excel(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [("text", "label"), *((first, n % 2) for n, (first, _) in enumerate(ROWS))]:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    examples = load(tmp_path / "a.xlsx")
    assert examples.task.labels == ("0", "1")
    assert everything(examples)[1] == (ROWS[1][0], "1")


def test_folder_of_split_files(tmp_path: Path) -> None:
    for name, rows in (("train", ROWS[:20]), ("dev_v1.0", ROWS[20:30]), ("some-1.0_test", ROWS[30:])):
        write(tmp_path / f"{name}.csv", as_csv(rows))
    assert load(tmp_path).splits.num_rows == {"train": 20, "validation": 10, "test": 10}


def test_shards_of_a_split_are_joined(tmp_path: Path) -> None:
    for shard in range(2):
        write(tmp_path / f"train-0000{shard}-of-00002.csv", as_csv(ROWS[shard * 20 : shard * 20 + 20]))
    assert everything(load(tmp_path)) == ROWS


def test_one_folder_a_label(tmp_path: Path) -> None:
    for number, (first, label) in enumerate(ROWS):
        write(tmp_path / label / f"{number:03}.txt", first)
    examples = load(tmp_path)
    assert examples.task.labels == ("bad", "good")
    assert sorted(everything(examples)) == sorted(ROWS)


def test_folders_of_labels_in_folders_of_splits(tmp_path: Path) -> None:
    for number, (first, label) in enumerate(ROWS):
        write(tmp_path / ("test" if number < 10 else "train") / label / f"{number}.txt", first)
    write(tmp_path / "train" / "unsup" / "1.txt", "no label")
    examples = load(tmp_path)
    assert examples.splits.num_rows["test"] == 10
    assert "unsup" in examples.messages[0]


def test_glob_reads_files_one_after_another(tmp_path: Path) -> None:
    write(tmp_path / "2023.csv", as_csv(ROWS[:20]))
    write(tmp_path / "2024.csv", as_csv(ROWS[20:]))
    assert everything(load(str(tmp_path / "*.csv"))) == ROWS


def test_files_read_together_need_the_same_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", as_csv(ROWS))
    write(tmp_path / "b.csv", as_csv(ROWS, header=("text", "topic")))
    with pytest.raises(DataError, match="same columns"):
        load(str(tmp_path / "*.csv"))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(as_csv(ROWS).encode())))
    assert everything(load("-")) == ROWS


def test_python_objects() -> None:
    datasets = pytest.importorskip("datasets")
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    rows = [dict(zip(TABLE, row, strict=True)) for row in ROWS]
    texts = (TABLE["text"], TABLE["label"])
    for source in (TABLE, rows, texts, pd.DataFrame(TABLE), pl.DataFrame(TABLE), datasets.Dataset.from_dict(TABLE)):
        assert everything(load(source)) == ROWS


def test_pairs_as_lists() -> None:
    pairs = [(first, first[::-1]) for first, _ in ROWS]
    examples = load((pairs, TABLE["label"]))
    assert examples.splits["train"].column_names == ["text", "pair", "label", "row"]


def test_dataset_with_selected_rows_and_class_names() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "aye"])})
    data = datasets.Dataset.from_dict({"text": TABLE["text"], "label": [n % 2 for n in range(40)]}, features=features)
    examples = load(datasets.DatasetDict({"train": data.select(range(20, 40)), "validation": data.select(range(20))}))
    assert examples.task.labels == ("no", "aye")
    assert examples.splits["train"][0]["text"] == ROWS[20][0]


def test_packaged_sample() -> None:
    examples = load("sample/pairs")
    assert examples.columns.pair == "sentence2"
    assert set(examples.splits) == {"train", "validation", "test"}


def test_local_folder_wins_over_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "glue" / "mrpc" / "train.csv", as_csv(ROWS))
    monkeypatch.chdir(tmp_path)
    assert everything(load("glue/mrpc")) == ROWS


def test_unknown_hub_name_without_a_network_says_what_to_do() -> None:
    with pytest.raises((EnvironmentFault, DataError), match="no file or folder 'no_such/set'"):
        load("no_such/set")


def test_near_name_is_suggested(tmp_path: Path) -> None:
    write(tmp_path / "reviews.csv", as_csv(ROWS))
    with pytest.raises(DataError, match=r"reviews\.csv"):
        load(tmp_path / "reviws.csv")


@pytest.mark.parametrize("name", ["reviews.tsv", "Reviews.parquet", "reviews.jsonl.gz"])
def test_the_same_name_with_another_ending_is_suggested(tmp_path: Path, name: str) -> None:
    for beside in (name, "reviews.py", "reviewers.csv"):
        write(tmp_path / beside, "x")
    with pytest.raises(DataError, match=f"Did you mean '.*{name}'"):
        load(tmp_path / "reviews.csv")


def test_a_file_is_suggested_for_a_name_that_is_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "reviews.csv", as_csv(ROWS))
    monkeypatch.chdir(tmp_path)
    with pytest.raises((EnvironmentFault, DataError), match=r"Did you mean 'reviews\.csv'"):
        load("reviews")


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\.pkl are not read"):
        load(write(tmp_path / "a.pkl", b"\x80\x04."))


def test_pipes_are_read_and_devices_are_not(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(as_csv(ROWS).encode()))
    writer.start()
    assert everything(load(pipe)) == ROWS
    writer.join()
    with pytest.raises(DataError, match="neither a file nor a folder"):
        load("/dev/zero")


def test_header_in_another_language_over_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", as_csv(ROWS, header=("Kommentar", "Bewertung"), delimiter=";"))
    assert load(path).columns.text == "Kommentar"
    assert everything(load(path)) == ROWS


def test_folder_of_data_sets_names_one(tmp_path: Path) -> None:
    write(tmp_path / "reviews" / "train.csv", as_csv(ROWS))
    write(tmp_path / "tweets" / "train.csv", as_csv(ROWS))
    with pytest.raises(DataError, match=r"several data sets: reviews, tweets\. Name one .*reviews'"):
        load(tmp_path)


def test_a_folder_of_parquet_parts_is_one_table(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = labelled(60)
    for number in range(3):
        part = rows[20 * number : 20 * number + 20]
        table = pa.table({"text": [t for t, _ in part], "label": [y for _, y in part]})
        pq.write_table(table, tmp_path / f"part-0000{number}-{number}ab3.snappy.parquet")
    write(tmp_path / "_SUCCESS", "")
    assert everything(load(tmp_path)) == rows


def test_files_that_differ_by_a_number_are_parts_and_others_are_not(tmp_path: Path) -> None:
    for name in ("rows-1.csv", "rows-2.csv"):
        write(tmp_path / name, as_csv(labelled(20) if name == "rows-1.csv" else labelled(40)[20:]))
    assert everything(load(tmp_path)) == labelled(40)
    write(tmp_path / "others.csv", as_csv(labelled(20)))
    with pytest.raises(DataError, match="a folder without train, validation or test files"):
        load(tmp_path)


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix != ".txt"])
def test_every_ending_that_is_read_is_found_in_a_folder(suffix: str, tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}{suffix}").touch()
    found = find_source(tmp_path, DataConfig(), tmp_path)
    assert set(found.files) == {"train", "test"}
