"""`whet predict` gives the rows back as they came, and refuses what would lose data or mean something else."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whet.cli import main

ROWS = [
    {"id": "007", "text": "yes, a drum", "label": "maybe", "when": "2024-02-01"},
    {"id": "008", "text": "@no =iron", "label": "", "when": "2024-02-02"},
]
ADDED = ["predicted", "probability", "p(bad)", "p(good)"]


@pytest.fixture(scope="module")
def model(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    from whet.config import ModelConfig
    from whet.models.pretrained import load_model, load_tokenizer, save_model
    from whet.task import Task

    folder = tmp_path_factory.mktemp("classifier")
    loaded = load_model(str(tiny_model_folder), Task("binary", ("bad", "good")), ModelConfig(), seed=0)
    save_model(loaded.model, load_tokenizer(str(tiny_model_folder), ModelConfig()), folder)
    return str(folder)


def labelled(model: str, source: Path | str, output: Path, *flags: str) -> Path:
    assert main(["predict", model, str(source), "-o", str(output), "--text-column", "text", *flags]) == 0
    return output


def table(path: Path, delimiter: str = ",") -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline=""), delimiter=delimiter))


def as_table(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


@pytest.mark.parametrize(("name", "delimiter"), [("out.csv", ","), ("out.tsv", "\t")])
def test_a_table_comes_back_with_all_its_columns(model: str, tmp_path: Path, name: str, delimiter: str) -> None:
    (tmp_path / "new.csv").write_text(as_table(ROWS))
    found = table(labelled(model, tmp_path / "new.csv", tmp_path / name), delimiter)
    assert list(found[0]) == [*ROWS[0], *ADDED]
    assert [{key: row[key] for key in ROWS[0]} for row in found] == ROWS
    assert all(row["predicted"] in ("bad", "good") and float(row["probability"]) >= 0.5 for row in found)


def test_a_column_that_is_there_already_is_named(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_text(as_table([{**row, "predicted": "x"} for row in ROWS]))
    found = table(labelled(model, tmp_path / "new.csv", tmp_path / "out.csv"))
    assert [(row["predicted"], row["predicted_2"] in ("bad", "good")) for row in found] == [("x", True)] * 2
    assert "The input has 'label' of its own; the model's answer is in 'predicted_2'." in capsys.readouterr().err


def test_without_a_label_of_its_own_the_label_is_called_so(model: str, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text\nyes a drum\n")
    assert list(table(labelled(model, tmp_path / "new.csv", tmp_path / "out.csv"))[0]) == ["text", "label", *ADDED[1:]]


def test_json_lines_keep_their_types_and_what_is_nested(model: str, tmp_path: Path) -> None:
    rows = [
        {"id": 7, "by": {"name": "Ö", "ages": [1, None]}, "text": "yes", "mixed": 1, "ok": True},
        {"text": "no", "mixed": "\ud800", "late": 0.5},
    ]
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = labelled(model, tmp_path / "new.jsonl", tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    assert [{key: row[key] for key in own} for row, own in zip(found, rows, strict=True)] == rows
    assert [list(row)[-4:] for row in found] == [["label", *ADDED[1:]]] * 2
    as_parquet = pq.read_table(labelled(model, tmp_path / "new.jsonl", tmp_path / "out.parquet")).to_pylist()
    assert [row["by"] for row in as_parquet] == [rows[0]["by"], None]
    assert as_parquet[0]["mixed"] == "1"


def test_parquet_keeps_its_types(model: str, tmp_path: Path) -> None:
    own = pa.table(
        {
            "day": pa.array([19000, 19001], pa.date32()),
            "by": [{"name": "x"}, None],
            "text": ["yes", "no"],
            "n": pa.array([1, None], pa.int16()),
        }
    )
    pq.write_table(own, tmp_path / "new.parquet")
    found = pq.read_table(labelled(model, tmp_path / "new.parquet", tmp_path / "out.parquet"))
    assert found.select(own.column_names).equals(own)
    assert found.schema.field("probability").type == pa.float64()
    shown = table(labelled(model, tmp_path / "new.parquet", tmp_path / "out.csv"))
    assert (shown[0]["day"], shown[0]["by"], shown[1]["n"]) == ("2022-01-08", '{"name": "x"}', "")


def test_rows_without_a_text_are_left_out_and_the_others_keep_their_number(model: str, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("id,text\na,yes\nb,\nc,no\n")
    found = table(labelled(model, tmp_path / "new.csv", tmp_path / "out.csv", "--drop-empty"))
    assert [(row["id"], row["row"]) for row in found] == [("a", "1"), ("c", "3")]


def test_standard_input_comes_back_too(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(as_table(ROWS).encode())))
    assert [row["id"] for row in table(labelled(model, "-", tmp_path / "out.csv"))] == ["007", "008"]


def test_splits_of_a_folder_come_one_after_another(model: str, tmp_path: Path) -> None:
    for name, text in (("train", "yes"), ("test", "no")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": text, name: 1}) + "\n")
    found = table(labelled(model, tmp_path, tmp_path / "out.csv"))
    assert [(row["text"], row["train"], row["test"]) for row in found] == [("yes", "1", ""), ("no", "", "1")]


def test_a_file_of_the_folder_that_is_read_is_not_written(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.csv").write_text("text\nyes\n")
    assert main(["predict", model, str(tmp_path), "-o", str(tmp_path / "train.csv")]) == 2
    assert "both read and written" in capsys.readouterr().err


def test_one_text_can_be_written(model: str, tmp_path: Path) -> None:
    assert main(["predict", model, "--text", "yes \udcff", "-o", str(tmp_path / "out.csv")]) == 0
    [found] = table(tmp_path / "out.csv")
    assert list(found) == ["text", "label", *ADDED[1:]]
    assert found["text"] == "yes \ufffd"


def test_every_text_that_is_given_is_answered(model: str, tmp_path: Path) -> None:
    texts = ["--text", "yes", "--text", "no"]
    assert main(["predict", model, *texts, "-o", str(tmp_path / "out.csv")]) == 0
    assert [row["text"] for row in table(tmp_path / "out.csv")] == ["yes", "no"]


def test_a_text_without_its_pair_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "--text", "a", "--text", "b", "--pair", "c"]) == 2
    assert "--text is given 2 times and --pair 1 times" in capsys.readouterr().err


def test_the_file_that_is_read_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new.csv"
    file.write_text("text\nhello\n")
    assert main(["predict", "run", str(file), "-o", str(file)]) == 2
    assert "both read and written" in capsys.readouterr().err
    assert file.read_text() == "text\nhello\n"


def test_a_missing_output_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "--text", "x", "-o", str(tmp_path / "nowhere" / "out.csv")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_an_empty_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "--text", " "]) == 2
    assert "--text is empty" in capsys.readouterr().err


def test_a_pair_column_is_read_under_its_own_name(model: str, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("a,b\nyes,a drum\nyes,no iron\n")
    columns = ["--text-column", "a", "--pair-column", "b"]
    assert main(["predict", model, str(tmp_path / "new.csv"), "-o", str(tmp_path / "out.csv"), *columns]) == 0
    one, other = table(tmp_path / "out.csv")
    assert one["p(bad)"] != other["p(bad)"]
