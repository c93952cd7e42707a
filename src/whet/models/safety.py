"""What a model folder may not be: checked before a library opens anything in it.

No pickle is read and no code of the folder runs, unless the user asks for it by name (`--trust-remote-code`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from whet.errors import ArtifactError

PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
INDEX = "model.safetensors.index.json"
MOST_LAYERS = 1000
# A settings file can ask for attention code that is fetched from a hub: its name then has a slash.
_FETCHED_CODE = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal", "use_kernels")
_LAYER_COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def refuse_unsafe_folder(folder: Path, trust: bool = False) -> None:
    """Raise ArtifactError for a folder that is no model, has no safe weights, or brings code."""
    config = read_json(
        folder / "config.json", required=f"{str(folder)!r} is not a model folder: it has no config.json."
    )
    if not isinstance(config.get("model_type"), str):
        raise ArtifactError(f"{str(folder / 'config.json')!r} names no model_type.")
    if not trust:
        tokenizer = read_json(folder / "tokenizer_config.json")
        fetched = [config.get(name) for name in _FETCHED_CODE]
        if config.get("auto_map") or tokenizer.get("auto_map") or any(_is_fetched(value) for value in fetched):
            raise own_code(str(folder))
    for name in _LAYER_COUNTS:
        if isinstance(config.get(name), int) and config[name] > MOST_LAYERS:
            raise ArtifactError(f"{str(folder / 'config.json')!r} asks for {config[name]} layers.")
    _refuse_unsafe_weights(folder)


def _refuse_unsafe_weights(folder: Path) -> None:
    index = read_json(folder / INDEX)
    names = set(index.get("weight_map", {}).values()) if isinstance(index.get("weight_map", {}), dict) else {"?"}
    for name in sorted(map(str, names)):
        if not _PLAIN_NAME.fullmatch(name) or not name.endswith(".safetensors"):
            raise ArtifactError(f"{str(folder / INDEX)!r} names {name!r}, which is not a weights file of this folder.")
    if not (folder / "model.safetensors").is_file() and not names:
        pickles = sorted(found.name for pattern in PICKLES for found in folder.glob(pattern))
        what = f"only {pickles[0]}, a pickle, which can run code" if pickles else "no weights"
        raise ArtifactError(f"{str(folder)!r} has {what}.", "whet reads model.safetensors: convert the file first.")


def refuse_missing_tokenizer(folder: Path) -> None:
    """A library may make up an empty tokenizer where there is none."""
    if not any(found for pattern in VOCABULARIES for found in folder.glob(pattern)):
        raise ArtifactError(f"{str(folder)!r} has no tokenizer.", "Save it there: tokenizer.save_pretrained(folder).")


def refuse_other_tokenizer(name: str, tokenizer: Any, config: Any) -> None:
    """A token that the embedding has no row for."""
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest < 0:
        raise ArtifactError(f"The tokenizer of {name!r} is empty.", "Save it again from its source.")
    if largest >= config.vocab_size:
        raise ArtifactError(
            f"The tokenizer of {name!r} has {largest + 1} tokens and its model knows {config.vocab_size}.",
            "They belong to two models; save both again from one source.",
        )


def own_code(name: str) -> ArtifactError:
    return ArtifactError(
        f"The model {name!r} comes with Python code of its own.",
        "To run it, add --trust-remote-code (in Python: trust_remote_code=True).",
    )


def read_json(path: Path, required: str = "") -> dict[str, Any]:
    """An object from a file; an empty one where there is no file, unless it is required."""
    if not path.is_file():
        if required:
            raise ArtifactError(required)
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ArtifactError(f"{str(path)!r} cannot be read: {error}.") from None
    if not isinstance(content, dict):
        raise ArtifactError(f"{str(path)!r} is not a JSON object.")
    return content


def _is_fetched(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_is_fetched(part) for part in value.values())
    return value is True or (isinstance(value, str) and "/" in value)
