"""Break the central modules in small ways, and see whether a test fails each time; docs/mutants.md gets the result.

    python tests/mutants.py --each 4 --seed 1

A mutant is one change: a boundary, a constant, an operator, a condition, two arguments, a statement that is gone.
Each runs in a fork of one warm process, on the tests that reach its line (coverage tells which), until one fails.
What was killed is remembered in .mutants/ and is not run again while its module is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mutants_known as known
from mutants_made import SOURCES, Mutant, drawn, lines_of_functions

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "mutants.md"
KEPT = ROOT / ".mutants"
"""Coverage of each test file, outcomes of mutants, and the copy of the sources that is broken."""
BROKEN = KEPT / "src"
TEST_SECONDS = 40.0
"""Tests that reach a mutant are left out once those before them take this long together, so some count as alive."""
LEAST_TIMEOUT = 60.0


# Running tests in forks


def prepare() -> None:
    """A copy of the sources to break, and everything imported but whet itself."""
    shutil.rmtree(BROKEN, ignore_errors=True)
    shutil.copytree(SOURCES, BROKEN, ignore=shutil.ignore_patterns("__pycache__"))
    os.chdir(ROOT)
    os.environ |= {
        "PYTHONPATH": str(BROKEN),
        "HF_HUB_OFFLINE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(KEPT / "hypothesis"),
        # A fork is safe only from a process with one thread.
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    sys.path[:1] = [str(BROKEN), str(ROOT)]
    from whet.tools.selftest.fork_server import PRELOADED, thread_count

    for name in (*(name for name in PRELOADED if not name.startswith("whet.")), "coverage", "hypothesis", "pytest"):
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.split(".")[0] == "whet"]:
        del sys.modules[name]
    if thread_count() != 1:
        raise SystemExit("A library has started a thread, so nothing can be forked.")


def in_fork(work: Callable[[], int], seconds: float) -> int | None:
    """What it returned; None if it took longer."""
    process = os.fork()
    if process == 0:
        status = 70
        try:
            os.setsid()
            output = os.open(KEPT / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for standard in (1, 2):
                os.dup2(output, standard)
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def run_tests(tests: list[str], *plugins: object, stop: bool) -> int:
    import pytest

    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
        "--hypothesis-seed=0",
        f"--basetemp={KEPT / 'tests'}",
    ]
    return int(pytest.main([*options, *(["-x"] if stop else []), *tests], plugins=[*plugins]))


# Which test reaches which line


class Contexts:
    """For each test that passes: how long it takes, and the lines of our modules that it runs."""

    def __init__(self) -> None:
        import coverage

        self.measured = coverage.Coverage(data_file=None, config_file=False, include=[f"{BROKEN}/*"])
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.measured.switch_context(nodeid)
        self.seconds[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = round(time.monotonic() - self.seconds[nodeid], 3)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def found(self) -> dict[str, Any]:
        """By test: seconds, and lines by module."""
        found: dict[str, Any] = {test: {"seconds": seconds, "lines": {}} for test, seconds in self.seconds.items()}
        data = self.measured.get_data()
        for module in known.MODULES:
            for line, contexts in data.contexts_by_lineno(str(BROKEN / "whet" / module)).items():
                for test in set(contexts) & set(found):
                    found[test]["lines"].setdefault(module, []).append(line)
        return {test: entry for test, entry in found.items() if test not in self.failed}


def reaching() -> dict[str, Any]:
    """All tests that reach one of the modules. What was measured before counts while test and sources are the same."""
    kept = KEPT / "coverage.json"
    before = json.loads(kept.read_text()) if kept.exists() else {}
    sources = "".join((SOURCES / "whet" / module).read_text(encoding="utf-8") for module in known.MODULES)
    found: dict[str, Any] = {}
    for file in sorted({file for pattern in known.TESTS for file in ROOT.glob(pattern)}):
        name = str(file.relative_to(ROOT))
        if any(part in name for part in known.LEFT_OUT):
            continue
        key = hashlib.sha256((sources + file.read_text(encoding="utf-8")).encode()).hexdigest()
        if before.get(name, {}).get("key") != key:
            print(f"which lines {name} reaches", flush=True)
            before[name] = {"key": key, "tests": _measure(name)}
            kept.write_text(json.dumps(before))
        found |= before[name]["tests"]
    return found


def _measure(file: str) -> dict[str, Any]:
    result = KEPT / "measured.json"
    result.unlink(missing_ok=True)

    def work() -> int:
        contexts = Contexts()
        with contexts.measured.collect():
            run_tests([file], contexts, stop=False)
        result.write_text(json.dumps({"tests": contexts.found(), "failed": contexts.failed}))
        return 0

    in_fork(work, 1200)
    found = json.loads(result.read_text())
    for test in found["failed"]:
        print(f"fails without any mutant, and is left out: {test}")
    return found["tests"]


def tests_for(mutant: Mutant, tests: dict[str, Any]) -> list[str]:
    """Those that reach its lines, the module's own first, then the quick ones. Where a line runs at import: all.

    Coverage counts an import for the test that happens to be the first to need the module.
    """
    lines = set(range(mutant.line, mutant.last_line + 1)) & lines_of_functions(mutant.module)
    own = f"/test_{Path(mutant.module).stem}.py"
    of_module = {test: each for test, each in tests.items() if mutant.module in each["lines"] or own in test}
    chosen = {test: each for test, each in of_module.items() if lines & set(each["lines"].get(mutant.module, ()))}
    chosen = chosen or of_module
    ordered = sorted(chosen, key=lambda test: (own not in test, chosen[test]["seconds"]))
    seconds, found = 0.0, []
    for test in ordered:
        seconds += chosen[test]["seconds"] + 0.01
        if seconds > TEST_SECONDS and found:
            break
        found.append(test)
    return found


# The outcome


def try_all(mutants: list[Mutant], tests: dict[str, Any]) -> dict[str, str]:
    """By name: the test that failed, `timeout`, or nothing for those that live."""
    kept = KEPT / "outcomes.json"
    outcomes = json.loads(kept.read_text()) if kept.exists() else {}
    found = {}
    for number, mutant in enumerate(mutants, start=1):
        if not outcomes.get(mutant.key):
            outcomes[mutant.key] = outcome_of(mutant, tests_for(mutant, tests))
            kept.write_text(json.dumps(outcomes, indent=1))
        found[mutant.key] = outcomes[mutant.key]
        print(f"{number}/{len(mutants)} {mutant.name}: {found[mutant.key] or 'LIVES'}", flush=True)
    return found


def outcome_of(mutant: Mutant, tests: list[str]) -> str:
    if not tests:
        return ""
    place = BROKEN / "whet" / mutant.module
    whole = place.read_text(encoding="utf-8")
    failed: Path = KEPT / "failed.txt"
    failed.unlink(missing_ok=True)

    class Names:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                failed.write_text(report.nodeid)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                failed.write_text(f"{report.nodeid}, which cannot be imported")

    try:
        place.write_text(mutant.source, encoding="utf-8")
        started = time.monotonic()
        status = in_fork(lambda: run_tests(tests, Names(), stop=True), LEAST_TIMEOUT + 3 * TEST_SECONDS)
    finally:
        place.write_text(whole, encoding="utf-8")
    if status == 0:
        return ""
    if status is None:
        return f"timeout after {time.monotonic() - started:.0f} s"
    if not failed.exists() and status > 0:
        raise SystemExit(f"pytest ended with {status} and no failed test: see {KEPT / 'output.txt'}.")
    return failed.read_text() if failed.exists() else f"the process ended with {status}"


def page(mutants: list[Mutant], outcomes: dict[str, str], asked: argparse.Namespace) -> str:
    """What was tried, what died, and every one that lives with its reason."""
    rows = ["| module | mutants | killed | equivalent | alive |", "|---|---|---|---|---|"]
    counts = {"mutants": 0, "killed": 0, "equivalent": 0, "alive": 0}
    for module in known.MODULES:
        own = [each for each in mutants if each.module == module]
        of = Counter("killed" if outcomes[each.key] else "equivalent" if each.reason else "alive" for each in own)
        rows.append(f"| `{module}` | {len(own)} | {of['killed']} | {of['equivalent']} | {of['alive']} |")
        counts = {name: count + (len(own) if name == "mutants" else of[name]) for name, count in counts.items()}
    rows.append(f"| all | {' | '.join(f'{count}' for count in counts.values())} |")
    living = [each for each in mutants if not outcomes[each.key]]
    listed = "\n".join(f"- `{each.name}`: {each.reason or 'alive'}" for each in living)
    share = 100 * counts["killed"] / len(mutants)
    return TEMPLATE.format(
        today=datetime.now(UTC).date(),
        each=asked.each,
        seed=asked.seed,
        named=len(known.MUST_DIE),
        share=share,
        rows="\n".join(rows),
        living=listed,
    )


TEMPLATE = """# What the tests notice

Written by `python tests/mutants.py --each {each} --seed {seed}` on {today}; `make mutants` writes it anew.

A mutant is a module with one small mistake in it: a comparison that is off at its boundary, another constant, an
operator, a condition turned around, two arguments swapped, a statement left out. The seed draws {each} of each module;
{named} more are named in `tests/mutants_known.py` and must die. Each is tried on the fast tests that reach its lines.
It is killed if one of them fails. **{share:.1f}% were killed.**

{rows}

## Those that live

An equivalent mutant does the same as the module, or differs only in time, memory or rounding.

{living}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=4, help="mutants of every module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="modules with this in their path; the page is not written")
    asked = parser.parse_args()
    KEPT.mkdir(exist_ok=True)
    mutants = [each for each in drawn(asked.each, asked.seed) if asked.only in each.module]
    prepare()
    outcomes = try_all(mutants, reaching())
    living = [each for each in mutants if not outcomes[each.key]]
    for each in living:
        print(f"{each.name}\n    {each.code}\n    {each.reason or 'UNEXPLAINED'}")
    if not asked.only:
        PAGE.write_text(page(mutants, outcomes, asked), encoding="utf-8")
    killed = len(mutants) - len(living)
    print(f"{killed} of {len(mutants)} mutants were killed: {100 * killed / max(1, len(mutants)):.1f}%.")
    return 0 if killed >= 0.9 * len(mutants) and all(each.reason for each in living) else 1


if __name__ == "__main__":
    sys.exit(main())
