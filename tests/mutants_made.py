"""Mutants: a module with one small mistake in it, as a person makes it."""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutants_known as known

SOURCES = Path(__file__).parent.parent / "src"

COMPARISONS = {"Lt": "LtE", "LtE": "Lt", "Gt": "GtE", "GtE": "Gt", "Eq": "NotEq", "NotEq": "Eq"}
COMPARISONS |= {"Is": "IsNot", "IsNot": "Is", "In": "NotIn", "NotIn": "In"}
ARITHMETIC = {"Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult", "FloorDiv": "Mult", "Mod": "Mult"}
ARITHMETIC |= {"Pow": "Mult", "BitAnd": "BitOr", "BitOr": "BitAnd", "MatMult": "Add"}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}
NAMES |= {"beta1": "beta2", "beta2": "beta1", "left": "right", "right": "left", "zeros": "ones"}
ALIKE = re.compile(r"^(min|max|zip|isinstance)$|Error$")
"""Calls whose arguments are not swapped: the order means nothing, a text for people, or never comes to run."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str
    line: int
    last_line: int
    code: str
    """The line as it stands, which finds it again after others were added above."""
    before: str
    after: str
    source: str
    """The whole module with the change in it."""

    @property
    def name(self) -> str:
        return f"{self.module}:{self.line} {self.before} -> {self.after}"

    @property
    def reason(self) -> str:
        """Why it is equivalent."""
        return known.EQUIVALENT.get((self.module, self.code, f"{self.before} -> {self.after}"), "")

    @property
    def key(self) -> str:
        """Tells the change and the whole module."""
        return f"{self.name} {hashlib.sha256(self.source.encode()).hexdigest()[:16]}"


def replacements(node: ast.AST) -> Iterator[ast.AST]:
    """Other nodes that could have been written here by mistake."""
    new: Any = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[operator]) if type(operator).__name__ in COMPARISONS:
            new.ops = [getattr(ast, COMPARISONS[type(operator).__name__])()]
            yield new
        case ast.BinOp(op=operator) if type(operator).__name__ in ARITHMETIC:
            new.op = getattr(ast, ARITHMETIC[type(operator).__name__])()
            yield new
        case ast.BoolOp(op=operator):
            new.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield new
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(value * 2 if value else 1.0)
        case ast.Call(func=called, args=[first, second, *others]) if not ALIKE.search(ast.unparse(called)):
            new.args = [second, first, *others]
            yield new
        case ast.IfExp(body=body, orelse=otherwise):
            new.body, new.orelse = otherwise, body
            yield new
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(NAMES[name], node.ctx)
        case ast.Attribute(attr=name) if name in NAMES:
            new.attr = NAMES[name]
            yield new
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.AugAssign(op=operator) if type(operator).__name__ in ARITHMETIC:
            new.op = getattr(ast, ARITHMETIC[type(operator).__name__])()
            yield from (new, ast.Pass())
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Raise() | ast.Delete():
            yield ast.Pass()
        case ast.Expr(value=value) if not isinstance(value, ast.Constant):
            yield ast.Pass()


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything that runs: no types, and nothing inside a text that is put together for people."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.JoinedStr) and not _is_without_effect(node):
                yield node
                yield from nodes(node)


def _is_without_effect(node: ast.AST) -> bool:
    """`Due = Callable[[int], bool]`, `if TYPE_CHECKING:`, and the `strict=True` of a zip of equal lengths."""
    match node:
        case ast.If(test=test):
            return ast.unparse(test) == "TYPE_CHECKING"
        case ast.Assign(value=value):
            return ast.unparse(value).startswith("Callable[")
        case ast.keyword(arg=name):
            return name in ("strict", "non_blocking")
    return False


def mutants_of(module: str) -> list[Mutant]:
    """All of a module's, in the order of its text."""
    text = (SOURCES / "whet" / module).read_text(encoding="utf-8")
    found = [mutant(module, text, node, new) for node in nodes(ast.parse(text)) for new in replacements(node)]
    return sorted((each for each in found if each.before != each.after), key=lambda each: (each.line, each.name))


@functools.cache
def lines_of_functions(module: str) -> frozenset[int]:
    """The lines that run when something is called, and not at import."""
    tree = ast.parse((SOURCES / "whet" / module).read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return frozenset(line for each in functions for line in range(each.body[0].lineno, each.end_lineno + 1))


def mutant(module: str, text: str, node: Any, new: ast.AST) -> Mutant:
    lines = text.splitlines(keepends=True)
    # The parser counts bytes.
    start = sum(map(len, lines[: node.lineno - 1])) + len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
    last = lines[node.end_lineno - 1].encode()[: node.end_col_offset].decode()
    end = sum(map(len, lines[: node.end_lineno - 1])) + len(last)
    after = ast.unparse(new)
    changed = text[:start] + (f"({after})" if isinstance(new, ast.expr) else after) + text[end:]
    code, before = lines[node.lineno - 1].strip(), " ".join(text[start:end].split())
    return Mutant(module, node.lineno, node.end_lineno, code, before, " ".join(after.split()), changed)


def named_mutants() -> list[Mutant]:
    """Those that must die whatever the seed draws."""
    found = []
    for module, before, after in known.MUST_DIE:
        text = (SOURCES / "whet" / module).read_text(encoding="utf-8")
        if text.count(before) != 1:
            raise SystemExit(
                f"{module} has {before!r} {text.count(before)} times: bring tests/mutants_known.py up to date."
            )
        line = text[: text.index(before)].count("\n") + 1
        found.append(Mutant(module, line, line, before, before, after, text.replace(before, after)))
    return found


def drawn(each: int, seed: int) -> list[Mutant]:
    """So many of every module, and those that are named."""
    found = named_mutants()
    for module in known.MODULES:
        made = mutants_of(module)
        random.Random(f"{seed} {module}").shuffle(made)
        found += made[:each]
    return found
