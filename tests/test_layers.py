"""The import table of docs/design.md holds, and light commands stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "whet"
VOCABULARY = {"errors", "config", "records", ""}
MAY_IMPORT = {
    "errors": {"argument_names"},  # lazily, where an error is told
    "argument_names": {"config"},
    "config": {"errors"},
    "records": {"errors"},
    "loading": set(),
    "gpu_files": {"errors"},
    "beside": set(),
    "recipe": VOCABULARY | {"data"},
    "data": VOCABULARY,
    "metrics": VOCABULARY,
    "engine": VOCABULARY | {"data", "metrics", "loading", "beside", "gpu_files"},
    "runs": VOCABULARY | {"metrics"},
    "serve": VOCABULARY | {"runs", "metrics"},
}


def imports_of(path: Path) -> set[str]:
    """The parts of whet that a module imports, whether at the top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name.split(".")[0] == "whet":
                found.add(name.split(".")[1] if "." in name else "")
    return found


@pytest.mark.parametrize("layer", sorted(MAY_IMPORT))
def test_a_layer_imports_only_what_it_may(layer: str) -> None:
    files = [ROOT / f"{layer}.py"] if (ROOT / f"{layer}.py").exists() else sorted((ROOT / layer).rglob("*.py"))
    assert files
    for path in files:
        strange = imports_of(path) - MAY_IMPORT[layer] - {layer}
        assert not strange, f"{path.relative_to(ROOT)} imports {strange}"


def test_nothing_imports_the_command_line() -> None:
    outside = [path for path in ROOT.rglob("*.py") if "cli" not in path.parts and path.name != "__main__.py"]
    assert not [path for path in outside if "cli" in imports_of(path)]


def test_only_devices_imports_accelerate() -> None:
    importers = {path.name for path in ROOT.rglob("*.py") if "import accelerate" in path.read_text()}
    importers |= {path.name for path in ROOT.rglob("*.py") if "from accelerate" in path.read_text()}
    assert importers <= {"devices.py"}


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
    code = "sys.modules['torch'] = None; import whet.runs, whet.runs.store, whet.runs.curves, whet.runs.verdict"
    assert "transformers" not in loaded_by(code)


def test_a_mistake_in_the_data_is_told_before_torch_loads(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"word {i},{i % 2}\n" for i in range(20)))
    loaded = loaded_by(f"from whet.cli import main; main(['train', {str(tmp_path / 'rows.csv')!r}, '--label', 'x'])")
    assert not loaded & {"torch", "transformers"}
