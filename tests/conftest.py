"""Small real models and data for tests: random weights, real architectures, no network."""

from __future__ import annotations

import os
import platform
import re
import subprocess

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's client is first imported
# Most tests are about one training with a split; those about the recipe and about folds ask for them.
os.environ["WHET_RECIPE"] = "course"

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

# No test depends on how fast the machine is, and hypothesis's default deadline would.
hypothesis.settings.register_profile("whet", deadline=None)
hypothesis.settings.load_profile("whet")

OTHERS = "make slow, pytest -m gpu, pytest -m network"
FAMILIES = ("bert", "roberta", "distilbert", "electra", "modernbert")


RELATIVE: dict[str, dict[str, Any]] = {
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 16,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
    },
    "mpnet": {"pad_token_id": 1},
}
"""What families with relative positions have of their own, as published but smaller."""


def pytest_report_header() -> str:
    """Which instruction sets the engine sees: what is tested goes by them."""
    from whet.utils.device import instruction_sets

    return f"processor: {platform.machine()}, {instruction_sets()}"


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of all, below what pytest itself says."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not config.option.collectonly:
        reasons = [report.longrepr[2] for report in reporter.stats.get("skipped", []) if report.longrepr]
        reporter.write_line(what_was_not_run(reasons, len(reporter.stats.get("deselected", []))))


def what_was_not_run(reasons: Iterable[str], left_out: int) -> str:
    """One line: how many tests were skipped, and why; how many were left out, and how to have them."""
    counts = Counter(" ".join(re.sub("^Skipped: ", "", reason).split()) for reason in reasons)
    parts = [f"{count} skipped: {reason}" for reason, count in sorted(counts.items())]
    parts += [f"{left_out} left out ({OTHERS})"] if left_out else []
    return f"Not run: {'; '.join(parts)}." if parts else "Nothing was skipped."


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests never read or fill the user's cache."""
    monkeypatch.setenv("WHET_CACHE", str(tmp_path_factory.getbasetemp() / "whet-cache"))


def small_model(
    family: str = "bert",
    *,
    labels: int = 2,
    dropout: float = 0.0,
    layers: int = 2,
    width: int = 32,
    seed: int = 0,
    **settings: Any,
) -> Any:
    """A classifier of this family with random weights; `settings` replace some of its configuration."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    sizes: dict[str, Any] = {"vocab_size": 400, "pad_token_id": 0, "num_labels": labels}
    if family == "distilbert":
        sizes |= {
            "dim": width,
            "n_layers": layers,
            "n_heads": 4,
            "hidden_dim": 64,
            "max_position_embeddings": 66,
        }
        sizes |= {"dropout": dropout, "attention_dropout": dropout, "seq_classif_dropout": dropout}
    else:
        sizes |= {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "intermediate_size": 64,
        }
        sizes |= {"max_position_embeddings": 66}
    if family in ("bert", "roberta", "electra"):
        sizes |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if family in RELATIVE:
        sizes |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, **RELATIVE[family]}
    if family == "electra":
        sizes |= {"embedding_size": width}
    if family == "qwen3":
        sizes |= {"num_key_value_heads": 2, "head_dim": 16}
    if family == "modernbert":
        sizes |= {"local_attention": 8, "global_attn_every_n_layers": 2, "classifier_pooling": "cls"}
        sizes |= {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, **{**sizes, **settings})
    return AutoModelForSequenceClassification.from_config(config)


def random_tokens(rows: int = 24, *, seed: int = 0, longest: int = 40, kind: str = "binary", types: bool = True) -> Any:
    """A token table of random rows whose label can be learned from their first token."""
    from whet.data.tokens.table import Tokens, Truncation

    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, longest + 1, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = rng.integers(5, 400, offsets[-1]).astype(np.int32)
    segments = (rng.random(offsets[-1]) < 0.5).astype(np.uint8) if types else None
    firsts = ids[offsets[:-1]]
    labels: Any = {
        "binary": firsts % 2,
        "multiclass": firsts % 3,
        "multilabel": np.stack([firsts % 2, firsts % 3 == 0], axis=1).astype(np.float32),
        "regression": (firsts / 400).astype(np.float32),
    }[kind]
    if kind in ("binary", "multiclass"):
        labels = labels.astype(np.int64)
    return Tokens(ids, offsets, segments, labels, Truncation(), f"random-{seed}")


def in_windows(tokens: Any, sizes: Iterable[int]) -> Any:
    """The same rows as windows of texts, so many each; a text has the label of its first window."""
    import dataclasses

    texts = np.concatenate([[0], np.cumsum(list(sizes))]).astype(np.int64)
    assert texts[-1] == len(tokens)
    return dataclasses.replace(tokens, texts=texts, labels=tokens.labels[texts[:-1]])


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved BERT of two thin layers with a word tokenizer: what `--model FOLDER` takes."""
    from whet.tools.selftest.tiny_run import write_model

    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    write_model(folder, width=32)
    return folder


@pytest.fixture(scope="session")
def warm() -> Iterator[Any]:
    """A process that has everything imported and forks commands: real exit codes, real signals, quickly."""
    from whet.tools.selftest.fork_client import warm_process

    with warm_process() as process:
        yield process


@pytest.fixture(scope="session")
def laboratory(warm: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Reference runs, and how to interrupt others that must end like them."""
    from whet.tools.selftest.trials import InterruptionTrials

    return InterruptionTrials(warm, tmp_path_factory.mktemp("laboratory"), seed=7)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, three megabytes large."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system takes rights that this user does not have")
    yield place
    subprocess.run(["umount", place], check=True)
