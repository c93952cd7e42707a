"""The layers of docs/design.md hold for every folder, nothing goes in circles, and light commands stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "whet"
BASE = {"errors", "config", "records", "task", ""}
DATA = BASE | {"utils", "data"}
ENGINE = DATA | {"models", "distributed", "engine"}
READING = BASE | {"utils", "metrics", "runs", "integrations"}
MAY_IMPORT = {
    "argument_names": set(),
    "errors": {"argument_names"},
    "config": {"errors", "argument_names"},
    "records": {"errors"},
    "task": {"errors"},
    "utils": {"errors"},
    "data": DATA,
    "metrics": {"errors", "utils"},
    "models": DATA,
    "distributed": {"errors", "utils"},
    "engine": ENGINE,
    "runs": BASE | {"utils", "metrics"},
    "integrations": READING,
    "training": ENGINE | READING,
    "inference": ENGINE | READING,
    "api": ENGINE | READING | {"training", "inference"},
    "experiments": ENGINE | READING | {"training", "inference", "api"},
    "adapters": ENGINE | READING | {"training", "inference", "api"},
    "huggingface": ENGINE | READING | {"training", "inference"},
    "tools": ENGINE | READING | {"training", "inference", "api", "cli"},
    "cli": ENGINE | READING | {"training", "inference", "api", "tools", "experiments"},
    "sample": set(),
    "__init__": {"adapters", "api", "engine", "experiments", "huggingface", "inference", "metrics"},
    "__main__": {"cli"},
}
"""What each folder, and each module in the root, may import of whet."""
LEAVES_THE_COMMAND_LINE_ALONE = {"cli", "__main__.py", "fork_server.py"}


def files_of(layer: str) -> list[Path]:
    return [ROOT / f"{layer}.py"] if (ROOT / f"{layer}.py").exists() else sorted((ROOT / layer).rglob("*.py"))


def imported(path: Path, *, at_the_top: bool = False) -> set[str]:
    """Modules of whet that a module imports; at the top alone, or inside functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in tree.body if at_the_top else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.split(".")[0] == "whet"}


def layers_imported(path: Path) -> set[str]:
    return {[*name.split("."), ""][1] for name in imported(path) if name != "whet"} - {"__version__"}


def test_every_folder_and_root_module_has_a_rule() -> None:
    present = {path.stem for path in ROOT.glob("*.py")} | {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert present == set(MAY_IMPORT)


def test_the_root_stays_small() -> None:
    assert len(list(ROOT.glob("*.py"))) <= 8


@pytest.mark.parametrize("layer", sorted(MAY_IMPORT))
def test_a_layer_imports_only_what_it_may(layer: str) -> None:
    files = files_of(layer)
    assert files
    for path in files:
        strange = layers_imported(path) - MAY_IMPORT[layer] - {layer}
        assert not strange, f"{path.relative_to(ROOT)} imports {strange}"


def test_the_rules_have_no_cycle() -> None:
    left = {layer: {name for name in may if name in MAY_IMPORT and name != layer} for layer, may in MAY_IMPORT.items()}
    left["tools"] -= {"cli"}  # the fork server runs commands
    while left:
        free = {layer for layer, may in left.items() if not may & left.keys()}
        assert free, f"these import each other: {sorted(left)}"
        left = {layer: may for layer, may in left.items() if layer not in free}


def test_modules_do_not_import_each_other_in_circles() -> None:
    modules = {".".join(("whet", *path.relative_to(ROOT).with_suffix("").parts)): path for path in ROOT.rglob("*.py")}
    left = {name: (imported(path, at_the_top=True) & modules.keys()) - {name} for name, path in modules.items()}
    while left:
        free = {name for name, needs in left.items() if not needs & left.keys()}
        assert free, f"these import each other: {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in free}


def test_nothing_imports_the_command_line() -> None:
    outside = [path for path in ROOT.rglob("*.py") if not LEAVES_THE_COMMAND_LINE_ALONE & set(path.parts)]
    assert not [path for path in outside if "cli" in layers_imported(path)]


def test_only_the_rendezvous_imports_accelerate() -> None:
    importers = {path.name for path in ROOT.rglob("*.py") if "import accelerate" in path.read_text()}
    importers |= {path.name for path in ROOT.rglob("*.py") if "from accelerate" in path.read_text()}
    assert importers == {"rendezvous.py"}


def test_every_folder_says_what_it_is_for() -> None:
    for package in ROOT.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))), package


def loaded_by(code: str) -> set[str]:
    script = f"import sys; {code}; print(' '.join(sorted(m.split('.')[0] for m in sys.modules)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines()[-1].split())


HEAVY = {"torch", "transformers", "datasets", "sklearn", "scipy", "pandas", "accelerate"}


def test_help_loads_no_heavy_package() -> None:
    assert not loaded_by("from whet.cli import main; main(['--help']); main(['train', '--help'])") & HEAVY


def test_import_whet_loads_no_heavy_package() -> None:
    assert not loaded_by("import whet") & HEAVY


def test_runs_can_be_read_without_torch() -> None:
    code = "sys.modules['torch'] = None; import whet.runs.folder, whet.runs.curves, whet.runs.verdict.judge"
    assert "transformers" not in loaded_by(code)


def test_a_mistake_in_the_data_is_told_before_torch_loads(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"word {i},{i % 2}\n" for i in range(20)))
    loaded = loaded_by(f"from whet.cli import main; main(['train', {str(tmp_path / 'rows.csv')!r}, '--label', 'x'])")
    assert not loaded & {"torch", "transformers"}
