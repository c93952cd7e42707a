from __future__ import annotations

from pathlib import Path

import pytest

from tests.data_files import as_csv, labelled, write
from whet.config import DataConfig, ModelConfig
from whet.data.audit.audit import Audit, audit
from whet.data.examples import load_examples
from whet.errors import ArtifactError
from whet.inference.token_preview import as_read

THAI = [("ร้านนี้ดีมาก" + "กขคง"[n % 4] * (n // 4 + 1), "ดี" if n % 2 else "แย่") for n in range(60)]


def read(path: Path, rows: list[tuple[str, str]], **settings: object) -> Audit:
    examples = load_examples(str(write(path / "rows.csv", as_csv(rows))), DataConfig())
    return as_read(audit(examples), examples, ModelConfig(**settings))  # type: ignore[arg-type]


def test_a_bare_tokenizer_reads_what_the_whole_one_reads(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*labelled(60), *((f"你 ÄÖ {text}", label) for text, label in labelled(40))]
    bare = read(tmp_path, rows, model=str(tiny_model_folder), max_length=16)
    monkeypatch.setattr("whet.inference.token_preview.bare_tokenizer", lambda folder: None)
    assert read(tmp_path, rows, model=str(tiny_model_folder), max_length=16) == bare
    assert 0 < bare.tokens["unknown"] < 1
    assert any(finding.code == "too-long" for finding in bare.findings)


def test_a_sample_is_called_one(tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.inference.token_preview.SAMPLE_ROWS", 20)
    report = read(tmp_path, THAI, model=str(tiny_model_folder))
    assert report.tokens["splits"]["train"]["rows"] == 20
    assert "in a sample of the rows" in report.errors[0].message


def test_few_bytes_are_tokenized_of_long_texts(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.inference.token_preview.SAMPLE_BYTES", 1)
    assert read(tmp_path, labelled(60), model=str(tiny_model_folder)).tokens["splits"]["train"]["rows"] == 1


def test_the_default_model_is_passed_over_where_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.models.pretrained._packaged", lambda: None)
    assert read(tmp_path, THAI).tokens == {}


def test_a_model_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no model folder"):
        read(tmp_path, THAI, model="./no-such-folder")
