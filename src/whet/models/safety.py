"""Checks a model folder before a library opens anything in it.

No pickle is read and no code of the folder runs, unless the user allows it (`--trust-remote-code`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whet.errors import ArtifactError
from whet.utils.untrusted_files import PLAIN_NAME, parse_json, read_text

PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
ADAPTER = "adapter_config.json"
"""A file beside which the library, where PEFT is installed, would load an adapter and its base model."""
INDEX = "model.safetensors.index.json"
MAX_LAYERS = 1000
MAX_LABELS = 100_000
MAX_FREE = 65_536
"""Sizes up to this are harmless in a configuration; larger ones must match the weights."""
MAX_POSITIONS = 1_048_576
MAX_TEXT = 512_000_000
MAX_HEADER = 100_000_000
MAX_PATTERN = 20_000
# A configuration can name attention code on a hub; such a name has a slash.
_FETCHED_CODE = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal", "use_kernels")
_LAYER_COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "encoder_layers")
_UNBOUNDED = re.compile(r"[*+](?!\+)|\{\d*,\}")


def refuse_unsafe_folder(folder: Path, trust: bool = False) -> None:
    """Raise ArtifactError if the folder is no model, has no safe weights, or contains code."""
    if (folder / ADAPTER).is_file():
        raise ArtifactError(
            f"{str(folder)!r} holds a PEFT adapter and not a whole model.",
            "Save it merged: model.merge_and_unload().save_pretrained(FOLDER). A run of whet has that in its model/.",
        )
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
        if isinstance(config.get(name), int) and config[name] > MAX_LAYERS:
            raise ArtifactError(f"{str(folder / 'config.json')!r} asks for {config[name]} layers.")
    _refuse_unsafe_weights(folder)
    _refuse_large_sizes(folder, config)
    _refuse_slow_tokenizer(folder)


def _refuse_large_sizes(folder: Path, config: dict[str, Any]) -> None:
    """Refuse sizes that the weights do not have: a few bytes of configuration can request any amount of memory."""
    path = str(folder / "config.json")
    if isinstance(config.get("num_labels"), int) and config["num_labels"] > MAX_LABELS:
        raise ArtifactError(f"{path!r} asks for {config['num_labels']} labels.")
    sizes = {name: value for name, value in config.items() if type(value) is int and "theta" not in name}
    shapes = _shapes(folder)
    if not shapes:
        return
    largest = max(size for shape in shapes for size in shape)
    for name, value in sizes.items():
        most = MAX_POSITIONS if name == "max_position_embeddings" else MAX_FREE
        if value > max(most, largest):
            raise ArtifactError(f"{path!r} asks for {name} {value}, and no weight has more than {largest}.")
    hidden, inner = sizes.get("hidden_size", 0), sizes.get("intermediate_size", 0)
    layers = min(sizes.get("num_hidden_layers", 0), sizes.get("num_hidden_groups", MAX_LAYERS))
    if layers * hidden * (hidden + inner) > 4 * sum(math.prod(shape) for shape in shapes):
        raise ArtifactError(f"{path!r} describes a model several times as large as its weights.", "Save it again.")


def _shapes(folder: Path) -> list[list[int]]:
    """Return the shapes in the weights' headers; none if they cannot be read, which the reader reports later."""
    found: list[list[int]] = []
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with open(file, "rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                header = parse_json(opened.read(length)) if length <= min(MAX_HEADER, file.stat().st_size) else {}
        except (ValueError, OSError):
            continue
        for name, tensor in header.items() if isinstance(header, dict) else ():
            shape = tensor.get("shape") if isinstance(tensor, dict) and name != "__metadata__" else None
            if isinstance(shape, list) and shape and 0 not in shape:
                found.append([size for size in shape if type(size) is int])
    return found


def _refuse_slow_tokenizer(folder: Path) -> None:
    """Refuse patterns with nested repetitions, such as (a+)+, which take endless time on some texts."""
    for value in _patterns(read_json(folder / "tokenizer.json")):
        if len(value) > MAX_PATTERN or repeats_a_repetition(value):
            raise ArtifactError(
                f"The tokenizer of {str(folder)!r} has the pattern {value[:60]!r}, which can take time without end.",
                "Save the tokenizer with a pattern that repeats no repetition.",
            )


def _patterns(tokenizer: dict[str, Any]) -> Iterator[str]:
    """Yield the regular expressions of a tokenizer, which are outside of its vocabulary."""
    waiting: list[Any] = [tokenizer.get(part) for part in ("normalizer", "pre_tokenizer", "decoder")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            if isinstance(value.get("Regex"), str):
                yield value["Regex"]
            waiting += value.values()


def repeats_a_repetition(pattern: str) -> bool:
    """Return whether an unbounded repetition stands inside another one."""
    plain = re.sub(r"\\[pPx]\{[^}]*\}|\\.", "x", pattern, flags=re.DOTALL)
    plain = re.sub(r"\[\^?\]?[^\]]*\]", "x", plain)
    holds: list[bool] = [False]
    place = 0
    while place < len(plain):
        char = plain[place]
        if char == "(":
            holds.append(False)
        elif char == ")" and len(holds) > 1:
            inner = holds.pop()
            if inner and _UNBOUNDED.match(plain, place + 1):
                return True
            holds[-1] = holds[-1] or inner
        elif _UNBOUNDED.match(plain, place):
            holds[-1] = True
        place += 1
    return False


def _refuse_unsafe_weights(folder: Path) -> None:
    index = read_json(folder / INDEX)
    names = set(index.get("weight_map", {}).values()) if isinstance(index.get("weight_map", {}), dict) else {"?"}
    for name in sorted(map(str, names)):
        if not PLAIN_NAME.fullmatch(name) or not name.endswith(".safetensors"):
            raise ArtifactError(f"{str(folder / INDEX)!r} names {name!r}, which is not a weights file of this folder.")
    if not (folder / "model.safetensors").is_file() and not names:
        pickles = sorted(found.name for pattern in PICKLES for found in folder.glob(pattern))
        what = f"only {pickles[0]}, a pickle, which can run code" if pickles else "no weights"
        raise ArtifactError(f"{str(folder)!r} has {what}.", "whet reads model.safetensors: convert the file first.")


def refuse_missing_tokenizer(folder: Path) -> None:
    """Refuse a folder without a tokenizer: a library may create an empty one."""
    if not any(found for pattern in VOCABULARIES for found in folder.glob(pattern)):
        raise ArtifactError(f"{str(folder)!r} has no tokenizer.", "Save it there: tokenizer.save_pretrained(folder).")


def refuse_other_tokenizer(name: str, tokenizer: Any, config: Any) -> None:
    """Refuse a tokenizer with tokens that the embedding has no row for."""
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest < 0:
        raise ArtifactError(f"The tokenizer of {name!r} is empty.", "Save it again from its source.")
    if largest >= config.vocab_size:
        raise ArtifactError(
            f"The tokenizer of {name!r} has {largest + 1} tokens and its model has {config.vocab_size}.",
            "They belong to two models; save both again from one source.",
        )


def own_code(name: str) -> ArtifactError:
    return ArtifactError(
        f"The model {name!r} comes with Python code of its own.",
        "To run it, add --trust-remote-code (in Python: trust_remote_code=True).",
    )


def read_json(path: Path, required: str = "") -> dict[str, Any]:
    """Return an object from a JSON file; an empty one if the file is missing and not required."""
    if not path.is_file():
        if required:
            raise ArtifactError(required)
        return {}
    try:
        content = parse_json(read_text(path, MAX_TEXT))
    except (ValueError, OSError) as error:
        raise ArtifactError(f"{str(path)!r} cannot be read: {error}.") from None
    if not isinstance(content, dict):
        raise ArtifactError(f"{str(path)!r} is not a JSON object.")
    return content


def _is_fetched(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_is_fetched(part) for part in value.values())
    return value is True or (isinstance(value, str) and "/" in value)
