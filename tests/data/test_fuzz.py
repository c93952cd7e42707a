"""A seeded sample of what `python tests/fuzz_inputs.py` runs by the thousand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz_inputs import run_case


@pytest.mark.parametrize("start", range(0, 100, 20))
def test_broken_files_are_refused_or_read_rightly(tmp_path: Path, start: int) -> None:
    for number in range(start, start + 20):
        folder = tmp_path / str(number)
        folder.mkdir()
        result = run_case(number, seed=7, folder=folder, own_process=False)
        assert not result.problem, result
