"""What Triton finds a compiled kernel by must not depend on which kernel is asked for first."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FUSED = Path(__file__).parents[3] / "src/whet/engine/fused"


def constants(module: ast.Module) -> set[str]:
    targets = [target for node in module.body if isinstance(node, ast.Assign) for target in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def read_by(function: ast.FunctionDef) -> set[str]:
    """Names in its body; what stands in the arguments is read once, when it is defined."""
    names = (node for line in function.body for node in ast.walk(line) if isinstance(node, ast.Name))
    return {name.id for name in names}


@pytest.mark.parametrize("source", sorted(path.name for path in FUSED.glob("*kernels.py")))
def test_no_kernel_reads_a_constant_of_its_module(source: str) -> None:
    # Up to 3.6 Triton's key of a kernel has those of the functions that it calls if another kernel has called them
    # before. With kernels compiled on several threads that is chance: what was compiled is not found again.
    module = ast.parse((FUSED / source).read_text(encoding="utf-8"))
    jitted = [
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert jitted
    assert {function.name: read_by(function) & constants(module) for function in jitted} == {
        function.name: set() for function in jitted
    }
