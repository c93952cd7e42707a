"""The library's own tests of its Trainer, with whet's class in its place.

    python benchmarks/stock_tests.py ~/transformers/tests/trainer/test_trainer.py [arguments of pytest]

The path is a file or a folder of `tests/trainer` in a source folder of transformers, of the version that is installed;
nothing is fetched. The tests run twice, with the library's class and with whet's. What counts is every test that passes
with the first and not with the second; their names are printed, and the exit code is 1 if there are any.
The run folder is left out: some of the tests count callbacks and files.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

WHOSE = "WHET_STOCK_TESTS"


def pytest_configure(config: Any) -> None:
    """As a plugin of pytest: put whet's classes where the tests import them from."""
    if os.environ.get(WHOSE) != "whet":
        return
    import whet

    # A dataclass, because some of the tests have dataclasses of their own below it.
    @dataclasses.dataclass(repr=False)
    class TrainingArguments(whet.TrainingArguments):
        """With the library's precision, and without a run folder."""

        bf16: bool = False
        record_run: bool = False

    trainer = whet.Trainer
    import transformers  # only now: importing its Trainer puts another module in the place of the first

    transformers.Trainer, transformers.TrainingArguments = trainer, TrainingArguments


def source_folder(place: Path) -> Path | None:
    """The source folder of transformers around the tests, which is where they are to run."""
    return next((each for each in place.resolve().parents if (each / "src" / "transformers").is_dir()), None)


def passed(place: Path, source: Path, whose: str, more: list[str]) -> set[str]:
    """Names of the tests that pass."""
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch) / "found.xml"
        plugin = ["-p", Path(__file__).stem, f"--junitxml={found}"]
        command = [sys.executable, "-m", "pytest", "-q", str(place.resolve()), *plugin, *more]
        paths = [str(Path(__file__).parent), str(source), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, WHOSE: whose, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        code = subprocess.run(command, cwd=source, env=environment).returncode
        if not found.is_file():
            sys.exit(f"pytest ended with code {code} before it ran a test of {place}.")
        cases = ElementTree.parse(found).getroot().iter("testcase")
        return {f"{case.get('classname')}::{case.get('name')}" for case in cases if not len(case)}


def main() -> int:
    if len(sys.argv) < 2 or not Path(sys.argv[1]).exists():
        print(__doc__)
        return 2
    place, more = Path(sys.argv[1]), sys.argv[2:]
    source = source_folder(place)
    if source is None:
        print(f"{place} is not in a source folder of transformers: none above it has src/transformers.")
        return 2
    stock, ours = (passed(place, source, whose, more) for whose in ("transformers", "whet"))
    print(f"{len(stock)} tests pass with transformers.Trainer; of these {len(stock & ours)} with whet.Trainer.")
    for name in sorted(stock - ours):
        print(f"  not with whet: {name}")
    return int(bool(stock - ours))


if __name__ == "__main__":
    sys.exit(main())
