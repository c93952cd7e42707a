"""What the tests say of themselves: where they ran, and what they left out."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import pytest_report_header, what_was_not_run

MAKEFILE = (Path(__file__).parent.parent / "Makefile").read_text(encoding="utf-8")


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
    recipe = MAKEFILE.split("\ntest: ")[1].split("\n\n")[0]
    assert "test-avx2" in recipe
    assert "browser" in recipe.splitlines()[0]
