"""`--long`: what is read of long texts, by every command; a run, its model folder and a server answer the same."""

from __future__ import annotations

import json
import random
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whet
from tests.data_files import as_csv, write
from whet.cli import main
from whet.config import make_config
from whet.errors import Interrupted, UsageError
from whet.inference.serving.batching import Batcher
from whet.records import Step
from whet.runs.folder import RunFolder
from whet.runs.report.html import write_report
from whet.runs.verdict.judge import verdict_of
from whet.tools.selftest.tiny_run import differences, run_contents, write_model
from whet.training.run import train_run

WORDS = ("apple", "brick", "cloud", "drum", "eagle", "flute", "grape", "house", "iron", "jelly")
LIMIT = 32
SETTINGS: dict[str, Any] = {
    "recipe": "course", "epochs": 2, "batch_size": 4, "learning_rate": 0.01, "evaluations": 2, "device": "cpu",
    "precision": "float32", "max_length": LIMIT, "log_every": 1, "folds": 0,
}  # fmt: skip


def long_rows(rows: int = 40) -> list[tuple[str, str]]:
    """Texts of very different lengths; the label stands in the last word."""
    chosen = random.Random(0)
    return [
        (f"{' '.join(chosen.choices(WORDS, k=1 + 3 * (n % 7)))} {n} {word}", label)
        for n in range(rows)
        for word, label in [(("no", "bad"), ("yes", "good"))[n % 2]]
    ]


TEXTS = [text for text, _ in long_rows()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with long.csv, a model for the fused path, and a run for each way of reading."""
    folder = tmp_path_factory.mktemp("long")
    write(folder / "long.csv", as_csv(long_rows(), header=["text", "label"]))
    write_model(folder / "model", width=64)
    for long in ("head", "head-tail", "windows"):
        train(folder, long, folder / long)
    return folder


def train(folder: Path, long: str, run: Path, **changes: Any) -> list[str]:
    said: list[str] = []
    settings = {**SETTINGS, "model": str(folder / "model"), "run": str(run), "long": long}
    config = make_config({**settings, "source": str(folder / "long.csv"), **changes.pop("settings", {})})
    train_run(str(folder / "long.csv"), config, echo=said.append, **changes)
    return said


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(list(arguments))
    found = capsys.readouterr()
    return code, " ".join((found.out + found.err).split())


@pytest.mark.parametrize("long", ["head", "head-tail", "windows"])
def test_a_run_and_its_model_folder_answer_the_same(place: Path, long: str) -> None:
    run, folder = (
        whet.load(path, device="cpu", precision="float32") for path in (place / long, place / long / "model")
    )
    assert run.long == folder.long == long
    np.testing.assert_array_equal(run.logits(TEXTS), folder.logits(TEXTS))


def test_what_a_run_has_measured_it_also_answers(place: Path) -> None:
    import pyarrow.parquet as pq

    rows = pq.read_table(place / "windows" / "predictions.parquet").to_pylist()
    found = whet.load(place / "windows", device="cpu", precision="float32").logits([row["text"] for row in rows])
    np.testing.assert_allclose(found, [row["logits"] for row in rows], atol=1e-4)


def test_all_of_a_text_is_read_in_windows_and_only_its_head_without(place: Path) -> None:
    text = " ".join(WORDS * 4)
    for long, reads in (("head", False), ("windows", True)):
        model = whet.load(place / long, device="cpu", precision="float32")
        one, other = model.logits([f"{text} brick drum", f"{text} yes yes yes"])
        assert np.allclose(one, other) == (not reads)


def test_a_pipeline_of_transformers_reads_the_head(place: Path) -> None:
    import transformers

    pipe = transformers.pipeline("text-classification", str(place / "windows" / "model"), device="cpu")
    model = whet.load(place / "windows", device="cpu", precision="float32")
    short, long = min(TEXTS, key=len), max(TEXTS, key=len)
    for text, same in ((short, True), (long, False)):
        own = model.predict(text, raw=True).probabilities
        theirs = {each["label"]: each["score"] for each in pipe(text, top_k=None, truncation=True)}
        assert (max(abs(own[name] - theirs[name]) for name in own) < 1e-4) == same
    assert "`transformers.pipeline` reads its head only" in (place / "windows" / "model" / "README.md").read_text()


def test_serving_answers_as_the_run_does(place: Path) -> None:
    model = whet.load(place / "windows", device="cpu", precision="float32")
    batcher = Batcher(model.logits)
    found = batcher.submit(TEXTS, None, 1e9)
    np.testing.assert_allclose(found.result(60), model.logits(TEXTS), atol=1e-5)
    batcher.close()


def test_what_is_not_read_is_said_by_every_command(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, head = str(place / "long.csv"), str(place / "head")
    _, checked = command(capsys, "check", source, "--model", str(place / "model"), "--max-length", str(LIMIT))
    assert "of the text is not read (--long windows)" in checked
    assert any("of the text is not read (--long windows)" in line for line in train(place, "head", place / "again"))
    for arguments in (["predict", head, source], ["evaluate", head, source]):
        _, said = command(capsys, *arguments)
        assert f"of the text is not read, for the model reads {LIMIT} tokens (train with --long windows" in said
    assert (
        "of the text is not read: --long windows reads all of it." in verdict_of(RunFolder.open(head).records()).advice
    )
    windows = str(place / "windows")
    for arguments in (["predict", windows, source], ["evaluate", windows, source], ["verdict", windows]):
        _, said = command(capsys, *arguments)
        assert "not read" not in said


def test_windows_are_counted_in_check_train_and_report(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(place / "model"), "--max-length", str(LIMIT), "--long", "windows"]
    _, checked = command(capsys, "check", str(place / "long.csv"), *flags)
    assert f"More than {LIMIT} tokens, and read in" in checked
    folder = RunFolder.open(place / "windows")
    train_split = folder.data["audit"]["tokens"]["splits"]["train"]
    assert train_split["windows"] > train_split["window_rows"] > 0
    assert train_split["cut_rows"] == 0
    page = write_report(folder).read_text()
    assert f"windows of {LIMIT} tokens: train {train_split['window_rows']} rows in {train_split['windows']}" in page


def test_a_run_in_windows_resumes_to_the_bit(place: Path) -> None:
    run, steps = place / "cut", count()

    def stop(event: Any, job: Any) -> None:
        if isinstance(event, Step) and next(steps) == 6:
            raise Interrupted("cut off", "")

    with pytest.raises(Interrupted):
        train(place, "windows", run, on_event=stop)
    train(place, "windows", run)
    assert differences(run_contents(place / "windows"), run_contents(run)) == []


def test_folds_hold_out_texts_and_not_windows(place: Path) -> None:
    train(place, "windows", place / "folds", settings={"folds": 2, "epochs": 1, "evaluations": 1})
    records = RunFolder.open(place / "folds").records()
    assert next(record.rows for record in records if getattr(record, "split", "") == "validation") == len(TEXTS)


def test_what_cannot_read_windows_refuses_them(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    code, said = command(capsys, "export", str(place / "windows"), "--to", "onnx", "-o", str(tmp_path / "onnx"))
    assert (code, "--long windows" in said) == (2, True)
    config = make_config({"source": str(place / "long.csv"), "long": "windows", "shard": True})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whet.training.run.require_several", lambda: None)
        with pytest.raises(UsageError, match="shard=True"):
            train_run(str(place / "long.csv"), config)


def test_a_way_of_reading_that_is_not_known_is_refused(place: Path, tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(place / "windows" / "model", tmp_path / "model")
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, "long_texts": "backwards"}))
    with pytest.raises(whet.errors.ArtifactError, match="'backwards'"):
        whet.load(folder)


def test_training_on_from_windows_reads_as_it_is_told(place: Path) -> None:
    train(place, "head", place / "on", settings={"model": str(place / "windows" / "model"), "max_steps": 2})
    assert "long_texts" not in json.loads((place / "on" / "model" / "config.json").read_text())
