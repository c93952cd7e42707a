"""Broken files, made from a seed, through the command line: no traceback, no hang, nothing read wrongly in silence.

    python tests/fuzz_inputs.py --cases 10000 --seed 1
    python tests/fuzz_inputs.py --seed 1 --only 4711      one case again, with everything it printed

Most cases run in this process; one in `--subprocess-every` runs as a process of its own. A case knows what it
wrote: what must be refused, what must be read, and what every row must be if it is read.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.fuzz_cases import Case, make_case

ALLOWED = (0, 2, 3, 4)
TIME_LIMIT = 60


@dataclass
class Result:
    """What a case did, and what was wrong about it."""

    number: int
    kind: str
    code: int = -1
    problem: str = ""
    err: str = ""


@dataclass
class Tally:
    """All cases so far."""

    codes: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    problems: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.codes[result.code] += 1
        self.kinds[result.kind] += 1
        if result.problem:
            self.problems.append(result)


class Hang(Exception):
    """The case took too long."""


@contextlib.contextmanager
def deadline(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_case(number: int, seed: int, folder: Path, own_process: bool) -> Result:
    """Make the case, check the file, compare what was read with what was written."""
    case = make_case(random.Random(f"{seed}:{number}"), folder)
    result = Result(number, case.kind)
    arguments = ["check", str(case.source), "--json", *case.arguments]
    try:
        with deadline(TIME_LIMIT):
            result.code, out, result.err = _process(arguments) if own_process else _call(arguments)
            result.problem = _judge(case, result, out)
    except Hang:
        result.problem = "hang"
    return result


def _call(arguments: list[str]) -> tuple[int, str, str]:
    from whet.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except Hang:
            raise
        except BaseException as error:  # whatever comes through is a traceback for the user
            import traceback

            return 1, out.getvalue(), "".join(traceback.format_exception(error))
    return code, out.getvalue(), err.getvalue()


def _process(arguments: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "whet", *arguments], capture_output=True, text=True, check=False, timeout=TIME_LIMIT * 2
    )
    return done.returncode, done.stdout, done.stderr


def _judge(case: Case, result: Result, out: str) -> str:
    if result.code not in ALLOWED or "Traceback" in result.err:
        return "traceback" if "Traceback" in result.err else f"exit code {result.code}"
    if result.code != 0:
        if case.must_pass:
            return "refused a sound file"
        said = result.err.strip().splitlines()
        if not 1 <= len(said) - said[-1].startswith("      Go on: whet check ") <= 2:
            return "the refusal is not one line, a hint and a command"
        return ""
    if result.err.strip():
        return "noise on stderr"
    if case.must_fail:
        return "silent: accepted what must be refused"
    json.loads(out)
    return _compare(case)


def _compare(case: Case) -> str:
    """Rows as they were read, against the rows that were written."""
    from whet.config import DataConfig
    from whet.data.examples import load_examples

    if case.rows is None:
        return ""
    examples = load_examples(str(case.source), DataConfig(**case.settings))
    read = sorted((row for split in examples.splits.values() for row in split), key=lambda row: row["row"])
    names = examples.task.labels
    found = [(row["text"], names[row["label"]] if names else row["label"]) for row in read]
    if case.damage == 0 and len(found) != len(case.rows):
        return f"silent: {len(found)} rows instead of {len(case.rows)}"
    wrong = _differences(found, case.rows)
    if wrong > case.damage:
        return f"silent: {wrong} rows are not what was written"
    return ""


def _differences(found: list[tuple[str, Any]], written: list[tuple[str, str]]) -> int:
    """Rows that one side has and the other has not."""
    one = Counter((text, _plain(label)) for text, label in found)
    other = Counter((text, _plain(label)) for text, label in written)
    return max(sum((one - other).values()), sum((other - one).values()))


def _plain(label: Any) -> str:
    """Numbers by value: 1.0 and 1 are one label."""
    try:
        return f"{float(label):g}"
    except ValueError:
        return str(label)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="run one case and keep its files")
    parser.add_argument("--subprocess-every", type=int, default=200, help="one case in so many is a process")
    options = parser.parse_args()
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="whet-fuzz-"))
    os.environ["WHET_CACHE"] = str(folder / "cache")
    os.environ["HF_HUB_OFFLINE"] = "1"
    tally = Tally()
    numbers = [options.only] if options.only is not None else range(options.cases)
    for number in numbers:
        place = folder / str(number)
        place.mkdir()
        result = run_case(
            number, options.seed, place, number % options.subprocess_every == options.subprocess_every - 1
        )
        tally.add(result)
        if options.only is not None:
            print(f"{result}\nfiles: {place}\n{result.err}")
            return 1 if result.problem else 0
        shutil.rmtree(place)
        if number % 500 == 499:
            shutil.rmtree(folder / "cache", ignore_errors=True)
            print(f"{number + 1} cases, {len(tally.problems)} problems", file=sys.stderr, flush=True)
    shutil.rmtree(folder)
    for problem in tally.problems[:20]:
        first = problem.err.strip().splitlines()[-1:] or [""]
        print(f"case {problem.number} ({problem.kind}): {problem.problem}: {first[0][:200]}")
    print(
        json.dumps(
            {
                "cases": sum(tally.codes.values()),
                "seed": options.seed,
                "exit_codes": dict(sorted(tally.codes.items())),
                "kinds": len(tally.kinds),
                "tracebacks": sum(p.problem == "traceback" for p in tally.problems),
                "hangs": sum(p.problem == "hang" for p in tally.problems),
                "silent": sum(p.problem.startswith("silent") for p in tally.problems),
                "problems": len(tally.problems),
                "seconds": round(time.monotonic() - started),
            }
        )
    )
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
