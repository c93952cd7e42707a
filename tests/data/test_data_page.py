"""docs/data.md says what the code does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from whet.config import DataConfig
from whet.data.audit.audit import CODES

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.mark.parametrize("code", CODES)
def test_every_finding_is_on_the_page(code: str) -> None:
    assert f"| `{code}` |" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(DataConfig) if field.name != "source"])
def test_every_setting_is_on_the_page(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"--{name.replace('_', '-')}" in page or f"--set {name}" in page


def test_the_python_examples_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    exec(page.split("```python\n")[1].split("```")[0], {})
