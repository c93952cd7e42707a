"""What the tests say of themselves: where they ran, and what they left out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import pytest_report_header, what_was_not_run

MAKEFILE = Path(__file__).parent.parent / "Makefile"


def test_the_header_names_the_instruction_sets() -> None:
    from whet.utils.device import instruction_sets

    assert pytest_report_header().endswith(instruction_sets())


def test_what_was_skipped_is_one_line_with_every_reason_once() -> None:
    line = what_was_not_run(["Skipped: no browser\n(apt)", "Skipped: no browser (apt)", "Skipped: no mount"], 3)
    assert line == (
        "Not run: 2 skipped: no browser (apt); 1 skipped: no mount; "
        "3 left out (make slow, pytest -m gpu, pytest -m network)."
    )


def test_nothing_skipped_is_said_too() -> None:
    assert what_was_not_run([], 0) == "Nothing was skipped."


def test_the_tests_of_other_processors_and_of_pages_belong_to_make_test() -> None:
    recipe = MAKEFILE.read_text(encoding="utf-8").split("\ntest: ")[1].split("\n\n")[0]
    assert "test-avx2" in recipe
    assert "browser" in recipe.splitlines()[0]


@pytest.mark.parametrize(
    ("said", "status", "told", "ends"),
    [
        ("Found 1 known vulnerability in 1 package", 1, "Found 1 known vulnerability", 2),
        ("No known vulnerabilities found", 0, "No known vulnerabilities found", 0),
        ("a: could not be audited\nb: could not be audited", 0, "The pins are not audited", 0),
        ("ConnectionError", 1, "The pins are not audited", 0),
    ],
)
def test_the_audit_fails_on_what_it_finds_alone(said: str, status: int, told: str, ends: int, tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("a==1\nb==2\n")
    tool = tmp_path / "pip-audit"
    tool.write_text(f"#!/bin/sh\necho '{said}'\nexit {status}\n")
    tool.chmod(0o755)
    command = ["make", "-s", "-f", str(MAKEFILE), "audit", f"AUDIT={tool}"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert told in found.stdout
    assert ("No known" in found.stdout) == (told == said)
    assert found.returncode == ends
