"""One benchmark over many families of models, within a given time: the frame of families.py and loop.py."""

from __future__ import annotations

import argparse
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from family_models import FAMILIES, about_rows, shape_of, write_model, write_pairs
from results import write_results

from whet.config import Config, make_config
from whet.errors import WhetError
from whet.tools.bench.benchmark import Worker

PACKAGES = ("torch", "triton", "transformers", "accelerate", "tokenizers", "peft", "whet")
PATIENCE = 150.0
"""Seconds after which a contender that does not answer is given up."""
Measure = Callable[[Config, argparse.Namespace, Sequence[Worker]], dict[str, Any]]


def parser_of(about: str | None, families: Sequence[str], minutes: float) -> argparse.ArgumentParser:
    """Return the options that both benchmarks have."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(families), choices=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--minutes", type=float, default=minutes, help="families that would take longer are left out")
    parser.add_argument("--steps", type=int, default=20, help="steps a turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--kind", help="the end of the file's name: gpu or cpu by default")
    return parser


def study(
    name: str,
    given: argparse.Namespace,
    processes: int,
    measure: Measure,
    lines_of: Callable[[dict[str, Any]], list[str]],
) -> None:
    """Measure each family, print its lines, and write all results after each."""
    started, longest = time.monotonic(), 0.0
    place = machine()
    # Loading the libraries takes as long as measuring a model, so on a GPU all processes do it at the beginning.
    idle = [] if place["small"] else [Worker(PATIENCE) for _ in range(processes * len(given.families))]
    for worker in idle:
        worker.load()
    about = {**place, "batch_size": given.batch_size, "lengths": about_rows()}
    found: list[dict[str, Any]] = []
    for family in given.families:
        begun = time.monotonic()
        if begun - started + longest > 60 * given.minutes:
            each: dict[str, Any] = {"error": f"left out, because {given.minutes:g} minutes were nearly over"}
        else:
            own = [idle.pop() if idle else Worker(PATIENCE) for _ in range(processes)]
            each = _measured(family, place["small"], given, measure, own)
        longest = max(longest, time.monotonic() - begun)
        each = {"family": family, "seconds": round(time.monotonic() - begun, 1), **each}
        found.append(each)
        lines = [f"{family}", *wrapped(each["error"])] if "error" in each else lines_of(each)
        print("\n".join(lines), flush=True)
        print(f"{family}: {each['seconds']:.0f} s", file=sys.stderr, flush=True)
        kind = given.kind or ("cpu" if place["small"] else "gpu")
        path = write_results(f"{name}-{kind}", PACKAGES, **about, families=found)
    print(path)


def _measured(
    family: str, small: bool, given: argparse.Namespace, measure: Measure, own: Sequence[Worker]
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="whet-families-") as scratch:
        folder, source = Path(scratch) / "model", Path(scratch) / "pairs.csv"
        kind, shape = shape_of(family, small=small)
        try:
            write_model(folder, family, small=small)
            write_pairs(source, shape["vocab_size"])
            settings = {"source": str(source), "model": str(folder), "batch_size": given.batch_size}
            config = make_config({**settings, "recipe": "course", "lora": "LoRA" in family})
            return {"type": kind, "shape": shape, **measure(config, given, own)}
        except (WhetError, ImportError, ValueError) as error:  # the library raises the last for an unknown type
            return {"type": kind, "error": " ".join(str(error).split())}


def machine() -> dict[str, Any]:
    """Return the device, or the instructions that torch computes with, and whether it takes the small shapes."""
    import torch

    from whet.utils.device import instruction_sets

    if torch.cuda.is_available():
        return {"device": torch.cuda.get_device_name(0), "small": False}
    return {"device": f"CPU: {instruction_sets()}, {torch.get_num_threads()} threads", "small": True}


def with_reason(job: dict[str, Any]) -> str:
    """Return the path of a job, with the reason against a faster one."""
    return str(job["path"]) + (f" ({job['why']})" if job["why"] else "")


def wrapped(text: str) -> list[str]:
    """Return a paragraph below the line of a family, 80 columns wide."""
    return textwrap.wrap(text, 80, initial_indent="  ", subsequent_indent="  ")


def no_echo(line: str) -> None:
    """Print nothing for each turn: there are too many."""
