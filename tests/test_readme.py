"""What the README and the design page name is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAKER = ROOT / "docs" / "site" / "reference.py"
"""Makes the pages in docs/reference/."""


def test_the_design_page_names_modules_that_exist() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "whet"
    named = set(re.findall(r"`((?:\w+/)*\w+(?:\.py|/))`", page)) - {"model/"}
    assert len(named) > 30
    assert not [name for name in named if not (source / name).exists() and not (ROOT / name).exists()]


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            made = target.startswith("reference/") and f'("{Path(target).stem}", ' in MAKER.read_text(encoding="utf-8")
            assert made or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_exit_code_is_named() -> None:
    from whet import errors

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    said = " ".join(text.split("Exit codes that scripts can trust: ", 1)[1].split("\n\n", 1)[0].split())
    kinds = (errors.UsageError, errors.ArtifactError, errors.EnvironmentFault, errors.Diverged, errors.Interrupted)
    assert re.findall(r"\b\d+\b", said) == ["0", *(str(kind.exit_code) for kind in kinds)]
    assert f"{errors.Diverged.exit_code} the loss or its gradient stopped being finite" in said
