"""What Triton finds a compiled kernel by must not depend on which kernel is asked for first."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[4] / "src/whet/engine"
SOURCES = sorted(str(path.relative_to(ENGINE)) for path in ENGINE.rglob("*kernels.py"))


def parsed(source: str) -> ast.Module:
    return ast.parse((ENGINE / source).read_text(encoding="utf-8"))


def constants(module: ast.Module) -> dict[str, ast.expr]:
    assigned = [node for node in module.body if isinstance(node, ast.Assign)]
    return {node.targets[0].id: node.value for node in assigned if isinstance(node.targets[0], ast.Name)}


def jitted(module: ast.Module) -> dict[str, ast.FunctionDef]:
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    return {each.name: each for each in functions if any("jit" in ast.unparse(one) for one in each.decorator_list)}


@pytest.mark.parametrize("source", SOURCES)
def test_no_kernel_reads_a_constant_of_its_module(source: str) -> None:
    # Up to 3.6 Triton's key of a kernel has the constants of the functions that it calls if another kernel has called
    # them before. With kernels compiled on several threads that is chance: what was compiled is not found again.
    # In a default they are no part of the key at all: another value would find the old kernel.
    module = parsed(source)
    kernels = jitted(module)
    assert kernels
    read = {name: {node.id for node in ast.walk(each) if isinstance(node, ast.Name)} for name, each in kernels.items()}
    assert {name: names & constants(module).keys() for name, names in read.items()} == {name: set() for name in read}


def test_dropout_numbers_as_many_places_as_a_row_may_have() -> None:
    module = parsed("fused/cuda/attention_kernels.py")
    longest = constants(module)["LONGEST"]
    numbers = [node.value for node in ast.walk(jitted(module)["_staying"]) if isinstance(node, ast.Constant)]
    assert isinstance(longest, ast.Constant)
    assert [number for number in numbers if isinstance(number, int)] == [longest.value]
