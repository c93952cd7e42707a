"""Models that somebody made to do harm, or that are not what they say: refused, and nothing in them is run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.errors import ArtifactError
from whet.models.safety import refuse_unsafe_folder
from whet.runs.folder import SUMS
from whet.tools.selftest.tiny_run import write_model, write_rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_model(folder)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.csv"
    write_rows(path, 40)
    return path


def settings(model: Path, run: Path) -> dict[str, Any]:
    chosen = {"epochs": 1, "batch_size": 8, "evaluations": 1}
    return {"model": str(model), "run": str(run), "recipe": "course", **chosen}


class Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.target),))


@pytest.fixture(scope="module")
def trained(model: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whet.fit(source, **settings(model, tmp_path_factory.mktemp("trained") / "run")).path


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def only_pickle(folder: Path, owned: Path) -> None:
    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin"):
        (folder / name).write_bytes(pickle.dumps(Payload(owned)))


def pickle_as_safetensors(folder: Path, owned: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Payload(owned)))


def own_model_code(folder: Path, owned: Path) -> None:
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(owned)!r})\nclass Evil: pass\n")
    names = ("AutoConfig", "AutoModelForSequenceClassification")
    edit_json(folder / "config.json", auto_map=dict.fromkeys(names, "evil.Evil"))


def own_architecture(folder: Path, owned: Path) -> None:
    own_model_code(folder, owned)
    edit_json(folder / "config.json", model_type="evil")


def own_tokenizer_code(folder: Path, owned: Path) -> None:
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(owned)!r})\nclass Evil: pass\n")
    edit_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]})


def fetched_attention(folder: Path, owned: Path) -> None:
    edit_json(folder / "config.json", attn_implementation="someone/kernel")


def wrong_shapes(folder: Path, owned: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=48)


def other_architecture(folder: Path, owned: Path) -> None:
    edit_json(folder / "config.json", model_type="electra", architectures=["ElectraForSequenceClassification"])


def truncated_weights(folder: Path, owned: Path) -> None:
    os.truncate(folder / "model.safetensors", 5000)


def no_tokenizer(folder: Path, owned: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def damaged_tokenizer(folder: Path, owned: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "WordPiece"')


def larger_tokenizer(folder: Path, owned: Path) -> None:
    edit_json(folder / "config.json", vocab_size=20)


def shards_elsewhere(folder: Path, owned: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"classifier.weight": "../outside.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def deep_config(folder: Path, owned: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)


def no_object(folder: Path, owned: Path) -> None:
    (folder / "config.json").write_text('["bert"]')


def endless_layers(folder: Path, owned: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=10**9)


def asks_for_memory(name: str, value: int) -> Any:
    def spoil(folder: Path, owned: Path) -> None:
        edit_json(folder / "config.json", **{name: value})

    spoil.__name__ = f"endless_{name}"
    return spoil


def tensor_of_10_to_the_12(folder: Path, owned: Path) -> None:
    tensor = {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}
    header = json.dumps({"classifier.weight": tensor}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def header_without_end(folder: Path, owned: Path) -> None:
    (folder / "model.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{}")


def endless_tokenizer(folder: Path, owned: Path) -> None:
    os.truncate(folder / "tokenizer.json", 1 << 38)  # a sparse file: it takes no room


def endless_config(folder: Path, owned: Path) -> None:
    os.truncate(folder / "config.json", 1 << 38)


def deep_tokenizer(folder: Path, owned: Path) -> None:
    (folder / "tokenizer.json").write_text('{"a":' * 100_000)


def slow_pattern(folder: Path, owned: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    edit_json(folder / "tokenizer.json", pre_tokenizer=split)


LARGE = ("vocab_size", "type_vocab_size", "max_position_embeddings", "intermediate_size", "hidden_size", "num_labels")

HOSTILE = [
    *(asks_for_memory(name, 10**9) for name in LARGE),
    tensor_of_10_to_the_12,
    header_without_end,
    endless_tokenizer,
    endless_config,
    deep_tokenizer,
    slow_pattern,
    only_pickle,
    pickle_as_safetensors,
    own_model_code,
    own_architecture,
    own_tokenizer_code,
    fetched_attention,
    wrong_shapes,
    other_architecture,
    truncated_weights,
    no_tokenizer,
    damaged_tokenizer,
    larger_tokenizer,
    shards_elsewhere,
    deep_config,
    no_object,
    endless_layers,
]


def test_an_adapter_is_not_followed_to_its_base(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(model, folder)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/else"}))
    with pytest.raises(ArtifactError, match="holds a PEFT adapter and not a whole model"):
        refuse_unsafe_folder(folder)


@pytest.mark.parametrize("spoil", HOSTILE, ids=lambda spoil: spoil.__name__)
def test_a_hostile_model_is_refused_for_training(spoil: Any, source: Path, model: Path, tmp_path: Path) -> None:
    folder, owned = tmp_path / "hostile", tmp_path / "owned"
    shutil.copytree(model, folder)
    spoil(folder, owned)
    with pytest.raises(ArtifactError):
        whet.fit(source, **settings(folder, tmp_path / "run"))
    assert not owned.exists()


@pytest.fixture
def code_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library copies a model's code before it runs it."""
    import transformers.dynamic_module_utils as modules

    monkeypatch.setattr(modules, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))


@pytest.mark.usefixtures("code_elsewhere")
def test_code_of_a_model_runs_when_it_is_asked_for_by_name(source: Path, model: Path, tmp_path: Path) -> None:
    folder, owned = tmp_path / "hostile", tmp_path / "owned"
    shutil.copytree(model, folder)
    own_tokenizer_code(folder, owned)
    with pytest.raises(ArtifactError):
        whet.fit(source, **settings(folder, tmp_path / "run"), trust_remote_code=True)
    assert owned.exists()


OWN_CLASSIFIER = """
from transformers import BertConfig, BertForSequenceClassification

class OwnConfig(BertConfig):
    model_type = "own"

class OwnClassifier(BertForSequenceClassification):
    config_class = OwnConfig
"""


@pytest.mark.usefixtures("code_elsewhere")
def test_a_model_with_code_of_its_own_answers_when_it_is_trusted(
    source: Path, model: Path, tmp_path: Path, capsys: Any
) -> None:
    from whet.cli import main

    folder = tmp_path / "own"
    shutil.copytree(model, folder)
    (folder / "own_code.py").write_text(OWN_CLASSIFIER)
    auto = {"AutoConfig": "own_code.OwnConfig", "AutoModelForSequenceClassification": "own_code.OwnClassifier"}
    edit_json(folder / "config.json", model_type="own", auto_map=auto)
    run = whet.fit(source, **settings(folder, tmp_path / "run"), trust_remote_code=True)
    for answer in (["predict", str(run.path), "--text", "good"], ["evaluate", str(run.path), str(source)]):
        assert main(answer) == 3
        assert "add --trust-remote-code" in capsys.readouterr().err
        assert main([*answer, "--trust-remote-code"]) == 0
    assert run.predict("good") == whet.load(run.path, trust_remote_code=True).predict("good")


def test_a_new_head_is_said(model: Path, source: Path, trained: Path, tmp_path: Path) -> None:
    from whet.config import make_config
    from whet.training.run import train_run

    said: list[str] = []
    for name, folder in (("new", model), ("own", trained / "model")):
        config = make_config({"source": str(source), **settings(folder, tmp_path / name)})
        train_run(str(source), config, echo=said.append)
    heads = [line.partition(") with ")[2] for line in said if line.startswith("Model: ")]
    assert heads == ["a new head for 2 outputs.", "its own head for 2 outputs."]


def other_labels(folder: Path, owned: Path) -> None:
    edit_json(folder / "config.json", id2label={"0": "up", "1": "down"}, label2id={"up": 0, "down": 1})


def more_labels(folder: Path, owned: Path) -> None:
    edit_json(folder / "config.json", id2label={"0": "a", "1": "b", "2": "c"}, label2id={"a": 0, "b": 1, "c": 2})


def same_labels(folder: Path, owned: Path) -> None:
    edit_json(folder / "config.json", id2label={"0": "a", "1": "a"}, label2id={"a": 0})


def no_head(folder: Path, owned: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["classifier.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "spoil", [*HOSTILE, other_labels, more_labels, same_labels, no_head], ids=lambda spoil: spoil.__name__
)
def test_a_hostile_run_is_refused_for_predictions(spoil: Any, trained: Path, tmp_path: Path) -> None:
    run, owned = tmp_path / "run", tmp_path / "owned"
    shutil.copytree(trained, run)
    (run / SUMS).unlink()  # which would notice all of it, and hide what is tested here
    spoil(run / "model", owned)
    with pytest.raises(ArtifactError):
        whet.load(run)
    assert not owned.exists()


@pytest.mark.parametrize("name", ["predict", "evaluate"])
def test_commands_end_with_3_on_a_pickle(name: str, trained: Path, source: Path, tmp_path: Path, capsys: Any) -> None:
    from whet.cli import main

    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / SUMS).unlink()
    only_pickle(tmp_path / "run" / "model", tmp_path / "owned")
    assert main([name, str(tmp_path / "run"), str(source)]) == 3
    assert "a pickle, which can run code" in capsys.readouterr().err
    assert not (tmp_path / "owned").exists()


def test_a_flipped_bit_in_the_finished_model_is_noticed(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    write_rows(tmp_path / "rows.csv")
    run = whet.fit(tmp_path / "rows.csv", model=str(tmp_path / "model"), run=str(tmp_path / "run"), max_steps=2)
    weights = run.path / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-100] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"model\.safetensors.*damaged or changed"):
        whet.load(run.path)
    assert whet.load(run.path / "model").predict(["yes apple"])  # asked for as it is


def test_layers_of_the_largest_weight_are_refused(model: Path, tmp_path: Path) -> None:
    """Each size alone stands in the weights; together they would be many times as large."""
    from whet.models.safety import refuse_unsafe_folder

    shutil.copytree(model, tmp_path / "model")
    refuse_unsafe_folder(tmp_path / "model")
    edit_json(tmp_path / "model" / "config.json", hidden_size=64, num_hidden_layers=1000, intermediate_size=60_000)
    with pytest.raises(ArtifactError, match="several times as large"):
        refuse_unsafe_folder(tmp_path / "model")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a*)*b", "((ab)+c)*", "(x{2,})+", r"(?:\w+\s?)*"])
def test_a_repeated_repetition_is_found(pattern: str) -> None:
    from whet.models.safety import repeats_a_repetition

    assert repeats_a_repetition(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"\(+a\)+",
        "[(+]+",
    ],
)
def test_patterns_of_real_tokenizers_pass(pattern: str) -> None:
    from whet.models.safety import repeats_a_repetition

    assert not repeats_a_repetition(pattern)
