"""`benchmarks/stock_tests.py` on a made-up source folder of transformers: it must really put whet's class in place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "stock_tests.py"
TESTS = """
import dataclasses

from transformers import Trainer, TrainingArguments


@dataclasses.dataclass
class Own(TrainingArguments):
    a: float = 0.5


def test_arguments_are_the_librarys():
    args = Own("out", use_cpu=True)
    assert args.a == 0.5 and args.bf16 is False


def test_which_class():
    assert Trainer.__module__ == "transformers.trainer"


def test_that_always_fails():
    raise AssertionError
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


@pytest.mark.slow
def test_what_passes_with_the_librarys_class_alone_is_named(tmp_path: Path) -> None:
    (tmp_path / "src" / "transformers").mkdir(parents=True)
    folder = tmp_path / "tests" / "trainer"
    folder.mkdir(parents=True)
    (folder / "test_made_up.py").write_text(TESTS, encoding="utf-8")
    found = run(str(folder))
    assert found.returncode == 1
    assert "2 tests pass with transformers.Trainer; of these 1 with whet.Trainer." in found.stdout
    assert [line.partition("::")[2] for line in found.stdout.splitlines() if "not with whet" in line] == [
        "test_which_class"
    ]


def test_another_folder_is_refused(tmp_path: Path) -> None:
    found = run(str(tmp_path))
    assert (found.returncode, found.stderr) == (2, "")
    assert "not in a source folder of transformers" in found.stdout
