"""The README's tree has a line for every file, and no line for a file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def paths_in_the_tree() -> set[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = text.split("```text\nsrc/whet/\n", 1)[1].split("```", 1)[0]
    found, folder = set(), ""
    for line in tree.splitlines():
        name = line.split()[0]
        if name.endswith("/"):
            folder = name
        else:
            inside = folder if line.startswith("    ") else ""
            found.add(f"{inside}{name}")
    return found


def test_the_tree_has_a_line_for_every_module() -> None:
    root = ROOT / "src" / "whet"
    modules = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if path.name != "__init__.py" or path.parent == root
    }
    assert paths_in_the_tree() == modules


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_exit_code_is_named() -> None:
    from whet import errors

    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    said = text.split("Exit codes that scripts can trust: ", 1)[1].split(" ## ", 1)[0]
    kinds = (errors.UsageError, errors.ArtifactError, errors.EnvironmentFault, errors.Diverged, errors.Interrupted)
    assert re.findall(r"\b\d+\b", said) == ["0", *(str(kind.exit_code) for kind in kinds)]
    assert f"{errors.Diverged.exit_code} the loss or its gradient stopped being finite" in said
