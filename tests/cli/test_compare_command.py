from __future__ import annotations

from pathlib import Path

import pytest

from tests.many_runs import build_many, score_of
from tests.run_folders import build_run
from whet.cli import main


def rows(root: Path, count: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    build_many(root, count)
    assert main(["compare", *(str(root / f"run-{number:03d}") for number in range(count))]) == 0
    return capsys.readouterr().out.splitlines()


def test_of_many_runs_each_is_a_row_with_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = rows(tmp_path, 8, capsys)
    assert out[0].split()[:3] == ["run", "validation", "accuracy"]
    assert {"learning_rate", "batch_size", "seed"} <= set(out[0].split())
    assert out[1].startswith("run-000 ")
    others = [int(line.split()[0][-3:]) for line in out[2:9]]
    assert others == sorted(others, key=score_of, reverse=True)
    assert "1.7e-05" in next(line for line in out if line.startswith("run-002"))


def test_many_comparisons_become_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "None of 7 other runs answers the validation rows of run-000" in " ".join(rows(tmp_path / "a", 8, capsys))
    paths = [str(build_run(tmp_path / f"run-{k}", seed=5, epochs=3 + k).path) for k in range(7)]
    assert main(["compare", *paths]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Of 6 other runs, 0 are better than run-0 on the same test rows and 0 are worse" in out


def test_few_runs_stand_beside_one_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = rows(tmp_path, 2, capsys)
    assert any(line.startswith("setting ") and "run-001" in line for line in out)
