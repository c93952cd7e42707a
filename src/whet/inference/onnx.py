"""Exports a model to ONNX, and proves on the run's validation rows that its answers are unchanged.

The folder holds model.onnx (its graph includes the decisions), tokenizer.json (with the truncation), model.json
(labels, inputs, outputs, checksums), proof.json and predict.py, which needs only onnxruntime, tokenizers and numpy. The
proof uses that predict.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import shutil
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from whet.errors import ArtifactError, DataError, EnvironmentFault, UsageError, missing_extra
from whet.metrics.intervals import Paired, paired
from whet.metrics.scores import MAIN_METRIC, evidence, higher_is_better, predicted
from whet.records import start_of
from whet.runs.folder import RunFolder, sum_of
from whet.runs.report.mistakes import PredictedRows, read_answers
from whet.utils.files import replacing, unwritable

if TYPE_CHECKING:
    from whet.inference.onnx_graph import ExportedModel
    from whet.inference.predictor import Predictor

PACKAGES = ("onnx", "onnxruntime", "onnxscript")
PROOF = "proof.json"
INPUTS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
"""The inputs of a graph, and what the package tokenizers calls them."""
DECIDED = ("temperature", "goal", "thresholds", "confidence", "limit")
LARGEST_DIFFERENCE = 1e-3
"""Largest difference of a logit in a float32 export; more means that something else is computed."""


@dataclass(frozen=True)
class Proof:
    """Both models on the same rows: `before` is whet in float32, `after` is the export."""

    rows: int
    largest_difference: float
    """Of a logit."""
    changed_labels: int
    test: Paired
    """The scores of both with the interval of the difference."""
    rows_per_second: tuple[float, float]
    """Speed on this CPU, before and after."""
    learned: bool = False
    """Whether the model was trained on these rows, as that of a run with folds is: then its score is no measure."""

    @property
    def worse(self) -> bool:
        """Return whether the score fell significantly."""
        fell = (self.test.difference < 0) == higher_is_better(self.test.metric) and self.test.difference != 0
        return self.test.visible and fell

    def lines(self) -> list[str]:
        """Describe the proof."""
        a, b, test = *self.rows_per_second, self.test
        kind = "training" if self.learned else "validation"
        rows = f"proof on {self.rows} {kind} rows: largest difference of a logit {self.largest_difference:.2g}"
        score = f"{test.metric} {test.a:.4f} before, {test.b:.4f} after: difference {test.difference:+.4f}"
        return [
            f"{rows}, {self.changed_labels} labels changed",
            f"{score} ({test.low:+.4f} to {test.high:+.4f}, p = {test.p_value:.2g})"
            + (", on rows that the model learned" if self.learned else ""),
            f"rows per second on this CPU: {a:.0f} before, {b:.0f} after",
        ]


def export_onnx(run: Path | str, output: Path, *, int8: bool = False, accept: bool = False) -> Proof:
    """Write the folder by an atomic rename. A significantly lower score raises unless it is accepted."""
    for package in PACKAGES:
        if find_spec(package) is None:
            raise missing_extra(package, "onnx", "Exporting to ONNX")
    from whet.inference.predictor import Predictor

    folder = RunFolder.open(run)
    _refuse_foreign(output)
    predictor = Predictor(run, device="cpu", precision="float32")
    if predictor.long != "head":
        raise UsageError(
            f"The model was trained with --long {predictor.long}, and an export reads the head of a text.",
            "Train without --long to export, or answer with whet serve.",
        )
    answers = read_answers(folder, "validation", predictor.task.kind, predictor.task.labels)
    if answers is None:
        raise DataError(
            f"The run {str(run)!r} has no predictions on labelled validation rows, which the proof needs.",
            "Finish the run first.",
        )
    try:
        with replacing(output) as scratch:
            scratch.mkdir(parents=True)
            _write(folder, predictor, scratch, int8)
            start = start_of(folder.records())
            proof = prove(predictor, scratch, answers, learned=start is not None and start.folds > 0)
            _refuse_worse(proof, int8, accept)
            (scratch / PROOF).write_text(json.dumps(dataclasses.asdict(proof), indent=1) + "\n", encoding="utf-8")
            shutil.rmtree(output, ignore_errors=True)
    except OSError as error:
        raise unwritable(output, error, "Choose another folder with -o.") from None
    return proof


def _refuse_foreign(output: Path) -> None:
    if output.is_symlink() or (output.exists() and (not output.is_dir() or not _is_export(output))):
        raise EnvironmentFault(f"{str(output)!r} holds something else.", "Choose another folder with -o.")


def _is_export(folder: Path) -> bool:
    return (folder / PROOF).is_file() or not any(folder.iterdir())


def _refuse_worse(proof: Proof, int8: bool, accept: bool) -> None:
    if accept:
        return
    if proof.worse:
        raise ArtifactError(
            f"The exported model is worse: {proof.lines()[1]}.",
            "Nothing was written. Leave --int8 out, or take it as it is with --accept.",
        )
    if not int8 and not proof.largest_difference <= LARGEST_DIFFERENCE:
        raise ArtifactError(
            f"The exported model computes something else: a logit differs by {proof.largest_difference:.2g}.",
            "Nothing was written. Take it as it is with --accept.",
        )


# Writing -------------------------------------------------------------------------------------------


def _write(folder: RunFolder, predictor: Predictor, target: Path, int8: bool) -> None:
    from whet.data.tokens.encoders import private_backend, token_for_nothing
    from whet.inference.onnx_graph import Answers, ExportedModel
    from whet.models.pretrained import load_saved

    model, tokenizer, task = load_saved(folder.model)  # the predictor's model may have released its weights
    backend = private_backend(tokenizer)
    if backend is None:
        raise ArtifactError("The model's tokenizer is written in Python, and tokenizer.json cannot hold it.")
    backend.enable_truncation(predictor.max_length, direction=tokenizer.truncation_side)
    backend.save(str(target / "tokenizer.json"))
    inputs = [name for name in INPUTS if name in tokenizer.model_input_names or name == "attention_mask"]
    answers = Answers(task, predictor.decisions)
    nothing = None if tokenizer.num_special_tokens_to_add() else token_for_nothing(tokenizer)
    with quiet_exporter():
        network = ExportedModel(model, answers, inputs, nothing).eval()
        _export(network, inputs, target / "model.onnx", min(9, predictor.max_length))
        if int8:
            _quantize(target / "model.onnx")
    (target / "predict.py").write_bytes((files("whet.inference") / "onnx_predict.py").read_bytes())
    about = {
        "task": task.kind,
        "labels": list(task.labels),
        "pairs": predictor.pairs,
        "max_length": predictor.max_length,
        "pad": tokenizer.pad_token_id or 0,
        "inputs": [[name, INPUTS[name]] for name in inputs],
        "outputs": ["logits", *answers.names],
        "places": answers.places,
        "decisions": {name: getattr(predictor.decisions, name) for name in DECIDED},
        "int8": int8,
        "sums": {path.name: sum_of(path) for path in (*sorted(target.glob("model.onnx*")), target / "tokenizer.json")},
    }
    (target / "model.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _export(network: ExportedModel, inputs: list[str], path: Path, tokens: int) -> None:
    """Trace the network with two rows of so many tokens."""
    import torch

    ids = torch.full((2, tokens), 1)
    mask = torch.ones_like(ids)
    mask[1, tokens // 2 :] = 0
    arguments = (ids, mask, torch.zeros_like(ids))[: len(inputs)]
    anything = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    try:
        with torch.no_grad():
            torch.onnx.export(
                network,
                arguments,
                path,
                input_names=inputs,
                output_names=["logits", *network.answers.names],
                dynamic_shapes=(tuple(anything for _ in inputs),),
                dynamo=True,
                verbose=False,
                external_data=_larger_than_a_file_may_be(network),
            )
    except (MemoryError, OSError):
        raise
    except Exception as raised:  # each stage of the exporter has its own exceptions
        error: BaseException = raised
        while error.__cause__ is not None:  # the outer ones name the stage, the innermost what is missing
            error = error.__cause__
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        kind = network.model.config.model_type
        raise ArtifactError(f"torch cannot export a model of the family {kind!r} to ONNX: {reason[:200]}") from None


def _larger_than_a_file_may_be(model: Any) -> bool:
    """Return whether the weights must be in a separate file: ONNX files end at two gigabytes."""
    return bool(sum(weight.numel() * 4 for weight in model.parameters()) > 1_900_000_000)


def _quantize(path: Path) -> None:
    """Store the weights of matrix products in 8 bits with one scale per column; activations are quantized at run
    time."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    # The quantizer's shape inference takes shapes noted by torch for contradictions.
    del model.graph.value_info[:]
    for file in path.parent.glob("model.onnx*"):
        file.unlink()
    quantize_dynamic(model, path, weight_type=QuantType.QInt8, per_channel=True)


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporter's progress and its warnings that do not concern this model."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "root", "")]
    before = [each.level for each in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for each in loggers:
            each.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for each, level in zip(loggers, before, strict=True):
                each.setLevel(level)


# Proving -------------------------------------------------------------------------------------------


def prove(predictor: Predictor, folder: Path, answers: PredictedRows, *, learned: bool = False) -> Proof:
    """Run every row that was measured through both models."""
    kind = predictor.task.kind
    exported = _predict_module(folder).Model(folder)
    rows: Any = answers.texts if answers.pairs is None else list(zip(answers.texts, answers.pairs, strict=True))
    exported.outputs(rows[:4])  # the first call of each takes longer
    predictor.logits(answers.texts[:4], None if answers.pairs is None else answers.pairs[:4])
    began = time.perf_counter()
    before = predictor.logits(answers.texts, answers.pairs)
    switched = time.perf_counter()
    after = np.array([row["logits"] for row in exported.outputs(rows)])
    ended = time.perf_counter()
    changed = predicted(kind, before) != predicted(kind, after)
    metric = MAIN_METRIC[kind]
    test = paired(answers.labels, evidence(kind, metric, before), evidence(kind, metric, after), metric)
    return Proof(
        rows=len(rows),
        largest_difference=float(np.abs(before - after).max()),
        changed_labels=0 if kind == "regression" else int(changed.reshape(len(rows), -1).any(axis=1).sum()),
        test=test,
        rows_per_second=(len(rows) / (switched - began), len(rows) / (ended - switched)),
        learned=learned,
    )


def _predict_module(folder: Path) -> Any:
    """Import the folder's predict.py, as its users do."""
    spec = spec_from_file_location("whet_exported_predict", folder / "predict.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
