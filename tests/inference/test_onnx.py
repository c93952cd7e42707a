"""An exported model answers as before, in a process that has none of the libraries it was trained with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whet
from tests.conftest import FAMILIES, small_model
from whet.cli import main
from whet.errors import ArtifactError, EnvironmentFault
from whet.inference import onnx as module
from whet.inference.decisions import read_logits
from whet.inference.onnx import Proof, export_onnx
from whet.metrics.intervals import Paired
from whet.runs.decisions import Decisions
from whet.runs.folder import RunFolder
from whet.task import Task
from whet.tools.selftest.tiny_run import write_rows

pytest.importorskip("onnxscript", reason="exports are tested where the packages of the extra onnx are installed")
pytest.importorskip("onnxruntime", reason="exports are tested where the packages of the extra onnx are installed")

NAMES = ("input_ids", "attention_mask", "token_type_ids")
TEXTS = ["yes apple", "no brick cloud drum", "yes " + "eagle flute " * 40, "no 7!", "犬"]
WITHOUT = "import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers', 'whet', 'pandas', 'onnx']))"


@pytest.fixture(scope="module")
def run(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    place = tmp_path_factory.mktemp("exported")
    write_rows(place / "rows.csv", 400)
    settings = {"epochs": 1, "learning_rate": 1e-3, "batch_size": 16, "precision": "float32", "device": "cpu"}
    return whet.fit(str(place / "rows.csv"), model=str(tiny_model_folder), run=str(place / "run"), **settings).folder


@pytest.fixture(scope="module")
def exported(run: RunFolder) -> Path:
    from whet.inference.decisions import write_decisions

    decided = Decisions(1.7, thresholds={"bad": 0.45}, confidence=0.6, limit=0.55)
    write_decisions(run, decided)
    assert main(["export", str(run.path), "--to", "onnx"]) == 0
    return run.path / "onnx"


def without_libraries(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{WITHOUT}; sys.path.insert(0, {str(folder)!r}); {code}"]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def test_the_exported_model_predicts_the_same_with_onnxruntime_alone(run: RunFolder, exported: Path) -> None:
    code = f"import json, predict; print(json.dumps(predict.Model().predict({TEXTS!r})))"
    found = json.loads(without_libraries(exported, code).stdout)
    expected = whet.load(run.path, device="cpu", precision="float32").predict(TEXTS)
    for one, other in zip(found, expected, strict=True):
        assert one["probabilities"] == pytest.approx(other.probabilities, abs=1e-5)
        assert (one["label"], one["abstain"], one["candidates"]) == (other.label, other.abstain, other.candidates)


@pytest.mark.slow
def test_a_text_without_a_token_is_read_by_a_tokenizer_without_special_tokens(tmp_path: Path) -> None:
    """As whet reads it: as one unknown token, alone and beside others."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1, "yes": 2, "no": 3, "apple": 4}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    config = AutoConfig.for_model("bert", vocab_size=5, num_labels=2, **ENCODER)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    write_rows(tmp_path / "rows.csv", 100)
    settings = {"epochs": 1, "precision": "float32", "device": "cpu", "allow": ("unknown-tokens",)}
    run = whet.fit(str(tmp_path / "rows.csv"), model=str(tmp_path / "model"), run=str(tmp_path / "run"), **settings)
    export_onnx(run.path, tmp_path / "onnx", accept=True)
    texts = ["\t", "yes", "no apple yes"]
    for some in (texts[:1], texts):
        found = module._predict_module(tmp_path / "onnx").Model(tmp_path / "onnx").outputs(some)
        expected = whet.load(run.path, device="cpu", precision="float32").logits(some)
        np.testing.assert_allclose([row["logits"] for row in found], expected, atol=1e-5)


def test_the_proof_is_kept(run: RunFolder, exported: Path) -> None:
    proof = json.loads((exported / "proof.json").read_text())
    assert proof["rows"] == run.data["rows"]["validation"] >= 40
    assert proof["largest_difference"] < 1e-4
    assert proof["changed_labels"] == 0
    assert proof["test"]["a"] == proof["test"]["b"]


def test_a_file_that_was_changed_after_its_proof_is_refused(exported: Path, tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(exported, tmp_path / "copy"))
    content = bytearray((folder / "model.onnx").read_bytes())
    content[-100] ^= 1
    (folder / "model.onnx").write_bytes(content)
    ended = without_libraries(folder, "import predict; predict.Model()")
    assert ended.returncode == 1
    assert ended.stderr.strip() == "model.onnx is not the file that was proven: export the model again."


@pytest.mark.slow
def test_an_export_that_computes_something_else_is_refused_unless_accepted(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST_DIFFERENCE", -1.0)
    with pytest.raises(ArtifactError, match="Nothing was written"):
        export_onnx(run.path, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert main(["export", str(run.path), "-o", str(tmp_path / "out"), "--accept"]) == 0
    assert (tmp_path / "out" / "proof.json").is_file()


@pytest.mark.slow
def test_int8_is_proven_too_and_replaces_what_was_exported_there(run: RunFolder, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    (tmp_path / "out").mkdir()
    for _ in range(2):
        proof = export_onnx(run.path, tmp_path / "out", int8=True, accept=True)
        assert 0 < proof.largest_difference < 1
    assert json.loads((tmp_path / "out" / "model.json").read_text())["int8"]


def paired(difference: float, p_value: float, metric: str = "accuracy") -> Paired:
    return Paired(metric, 0.9, 0.9 + difference, difference, 0, 0, p_value, 100, "mcnemar")


@pytest.mark.parametrize(
    ("test", "worse"),
    [
        (paired(-0.1, 0.001), True),
        (paired(-0.1, 0.2), False),
        (paired(+0.1, 0.001), False),
        (paired(0.0, 0.001), False),
        (paired(+0.1, 0.001, "mse"), True),
    ],
)
def test_a_score_that_fell_by_more_than_luck_is_refused(test: Paired, worse: bool) -> None:
    proof = Proof(100, 0.0, 3, test, (1.0, 1.0))
    assert proof.worse is worse
    if worse:
        with pytest.raises(ArtifactError, match="--accept"):
            module._refuse_worse(proof, int8=True, accept=False)
    module._refuse_worse(proof, int8=True, accept=worse)


def test_rows_that_the_model_learned_are_called_so(exported: Path) -> None:
    assert json.loads((exported / "proof.json").read_text())["learned"] is False  # it had validation rows of its own
    lines = Proof(60, 0.0, 0, paired(0.0, 1.0), (1.0, 1.0), learned=True).lines()
    assert lines[0].startswith("proof on 60 training rows")
    assert lines[1].endswith("on rows that the model learned")


def test_a_folder_of_others_and_a_missing_package_are_said(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(EnvironmentFault, match="holds something else"):
        export_onnx(run.path, tmp_path)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentFault, match=r"whet\[onnx\]"):
        export_onnx(run.path, tmp_path / "out")


@pytest.mark.parametrize(
    ("task", "decisions"),
    [
        (Task("binary", ("a", "b")), Decisions(2.0)),
        (Task("multiclass", ("a", "b", "c")), Decisions(0.5, thresholds={"c": 0.7}, confidence=0.7, limit=0.8)),
        (Task("multilabel", ("a", "b", "c")), Decisions(1.5, thresholds={"a": 0.2}, confidence=0.7, limit=0.6)),
        (Task("regression", ()), Decisions(limit=0.25)),
    ],
)
def test_every_task_and_decision_is_read_as_whet_reads_it(task: Task, decisions: Decisions) -> None:
    import torch

    from whet.inference.onnx_graph import Answers
    from whet.inference.onnx_predict import Model

    logits = np.random.default_rng(0).normal(0, 2, (50, task.outputs))
    answers = Answers(task, decisions)
    made = dict(zip(("logits", *answers.names), (None, *answers(torch.tensor(logits))), strict=True))
    model: Any = Model.__new__(Model)
    model.about = {"task": task.kind, "labels": list(task.labels), "places": answers.places}
    model.outputs = lambda rows: [
        {name: None if values is None else values[row].tolist() for name, values in made.items()} for row in rows
    ]
    read = read_logits(task, logits, decisions)
    for index, found in enumerate(model.predict(range(50))):
        if task.kind == "multilabel":
            assert found["label"] == [name for name, on in zip(task.labels, read.answers[index], strict=True) if on]
        else:
            expected = read.answers[index] if task.kind == "regression" else task.labels[read.answers[index]]
            assert found["label"] == expected
        assert list(found["probabilities"].values()) == pytest.approx(
            [] if task.kind == "regression" else read.chances[index].tolist()
        )
        assert ("abstain" in found, "candidates" in found) == (read.abstain is not None, read.candidates is not None)
        if read.abstain is not None:
            assert found["abstain"] == read.abstain[index]
        if read.candidates is not None:
            assert found["candidates"] == read.candidates[index]


def test_the_exported_script_is_short() -> None:
    code = (Path(module.__file__).parent / "onnx_predict.py").read_text(encoding="utf-8")
    body = code[code.index("class Model") :].splitlines()
    assert sum(bool(line.strip()) for line in body) <= 33


ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 66,
}
RELATIVE = {**ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "pooler_hidden_size": 32}
OTHERS: dict[str, dict[str, Any]] = {
    "mpnet": ENCODER,
    "xlm-roberta": ENCODER,
    "albert": {**ENCODER, "embedding_size": 16},
    "deberta": RELATIVE,
    "deberta-v2": {**RELATIVE, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    "rembert": {**ENCODER, "input_embedding_size": 16, "output_embedding_size": 16},
    "convbert": {**ENCODER, "embedding_size": 32},
}
"""Families that the general path trains, with random weights."""


def model_of(family: str) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    if family in FAMILIES:
        return small_model(family, labels=3).eval()
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=400, pad_token_id=0, num_labels=3, **OTHERS[family])
    return AutoModelForSequenceClassification.from_config(config).eval()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # DeBERTa's, in transformers
@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_every_family_that_trains_is_exported(family: str, tmp_path: Path) -> None:
    import onnxruntime
    import torch

    from whet.inference.onnx_graph import Answers, ExportedModel

    names = NAMES if family in ("bert", "electra", "albert", "deberta", "deberta-v2") else NAMES[:2]
    model, task = model_of(family), Task("multiclass", ("a", "b", "c"))
    decisions = Decisions(2.0, thresholds={"a": 0.4}, confidence=0.4, limit=0.7)
    network = ExportedModel(model, Answers(task, decisions), list(names), nothing=None)
    with module.quiet_exporter():
        module._export(network, list(names), tmp_path / "model.onnx", 9)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for rows, longest in ((1, 2), (1, 7), (5, 33), (3, 64)):
        ids = torch.randint(5, 300, (rows, longest))
        mask = torch.ones_like(ids)
        mask[-1, max(1, longest // 2) :] = 0
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
        given = {name: given[name] for name in names}
        with torch.no_grad():
            expected = model(**given).logits.numpy()
        found, label, *_ = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_array_equal(label[:, 0], read_logits(task, found, decisions).answers)
