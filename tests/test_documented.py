"""What the documentation names is there: each finding, flag and exit code is provoked, each setting has a test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from tests.data_files import labelled, text, write
from tests.test_faults import poisoned as poisoned  # a fixture
from tests.test_faults import poisoned_source
from whet.cli import main
from whet.cli.commands import root
from whet.config import DROPS, RESERVED_VARIABLES, SECTIONS, SETTINGS, from_environment, make_config
from whet.tools.selftest.tiny_run import train_arguments, write_rows

ROOT = Path(__file__).parent.parent
PAGES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.name != "experiments.md"  # names flags of the scripts in benchmarks/
    and path.parent.name != "reference"  # made from the code
}
FOREIGN = {"--max-restarts", "--num_machines", "--num_processes", "--multi_gpu", "--cpu", "--requeue", "--half"}
"""Flags of torchrun, accelerate, Slurm and of scripts beside the package."""

# --- findings -------------------------------------------------------------------------------------------------------

ROWS = labelled(120)
SENTENCE = "the quick brown fox jumps over the lazy dog near the old stone bridge at dawn"
Files = dict[str, list[tuple[str, ...]]]
PROVOKED: dict[str, tuple[Files, list[str]]] = {
    "leak": ({"train": ROWS, "validation": labelled(9)}, []),
    "conflict": ({"train": [*ROWS, (text(0), "good")]}, []),
    "duplicate": ({"train": [*ROWS, ROWS[0]], "validation": [(text(901), "bad"), (text(902), "good")]}, []),
    "near-leak": ({"train": [*ROWS, (SENTENCE, "bad")], "validation": [(f"{SENTENCE} today", "bad")]}, []),
    "near-duplicate": (
        {"train": [*ROWS, (SENTENCE, "bad"), (f"{SENTENCE} now", "bad")], "validation": [(text(901), "bad")]},
        [],
    ),
    "unmeasured-label": (
        {"train": labelled(120, ("bad", "fair", "good")), "validation": [(text(901), "bad"), (text(902), "good")]},
        [],
    ),
    "label-spelling": ({"train": labelled(120, ("bad", "good", "Good"))}, []),
    "imbalance": ({"train": [(text(n), "good" if n % 20 else "bad") for n in range(400)]}, []),
    "giveaway": ({"train": [(f"{words} {label}", label) for words, label in ROWS]}, []),
    "unknown-tokens": ({"train": [(f"犬 猫 鳥 {number}", label) for number, (_, label) in enumerate(ROWS)]}, []),
    "too-long": ({"train": ROWS}, ["--max-length", "8"]),
    "same-tokens": ({"train": [*ROWS, ("犬 one", "bad"), ("猫 one", "bad"), ("鳥 one", "good")]}, []),
    "unlabelled": ({"train": ROWS, "test": [(text(901), ""), (text(902), "good")]}, []),
    "unseen-label": ({"train": ROWS, "test": [(text(901), "strange"), (text(902), "good")]}, []),
    "mojibake": ({"train": [*ROWS, (f"{SENTENCE} cafÃ©", "bad")]}, []),
    "html-entities": ({"train": [*ROWS, (f"{SENTENCE} &amp; so", "bad")]}, []),
    "zero-width": ({"train": [*ROWS, (f"{SENTENCE}\u200b", "bad")]}, []),
    "dropped": ({"train": [*ROWS, ("", "bad")]}, ["--drop-empty"]),
    "surrogate": ({"train": [*ROWS, (f"{SENTENCE} \ud83d", "bad")]}, []),
}


def documented_findings() -> list[str]:
    table = PAGES["data.md"].split("| finding |")[1].split("\n\n")[0]
    return re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)


@pytest.mark.parametrize("code", documented_findings())
def test_a_documented_finding_is_found(
    code: str, tmp_path: Path, tiny_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, flags = PROVOKED[code]
    for split, rows in files.items():
        lines = [json.dumps({"text": words, "label": label}) for words, label in rows]
        write(tmp_path / "rows" / f"{split}.jsonl", "\n".join(lines) + "\n")
    main(["check", str(tmp_path / "rows"), "--json", "--model", str(tiny_model_folder), *flags])
    out = capsys.readouterr().out
    assert code in {finding["code"] for finding in json.loads(out)["findings"]}


# --- flags and settings ---------------------------------------------------------------------------------------------


def flags_of(name: str) -> set[str]:
    command = root.get_command(click.Context(root), name)
    assert command is not None, f"there is no command {name}"
    named = [each for each in command.params if isinstance(each, click.Option)]
    return {"--help"}.union(*(each.opts for each in named))


COMMANDS = root.list_commands(click.Context(root))
FLAGS = set().union(*(flags_of(name) for name in COMMANDS))


@pytest.mark.parametrize("page", PAGES)
def test_a_documented_flag_exists(page: str) -> None:
    for name, rest in re.findall(rf"\bwhet ({'|'.join(COMMANDS)})\b([^`\n|#]*)", PAGES[page]):
        assert set(re.findall(r"(?<!\S)--[a-z][\w-]*", rest)) <= flags_of(name)
    alone = set(re.findall(r"`(--[a-z][\w-]*)", PAGES[page]))
    assert alone <= FLAGS | FOREIGN


TESTS = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("*.py") if path != Path(__file__)]


def is_tested(word: str) -> bool:
    return any(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", code) for code in TESTS)


@pytest.mark.parametrize("flag", sorted(FLAGS - {"--help"}))
def test_a_flag_is_named_by_a_test(flag: str) -> None:
    assert is_tested(flag) or is_tested(flag.lstrip("-").replace("-", "_"))


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_named_by_a_test(name: str) -> None:
    flag = SECTIONS[SETTINGS[name]].__dataclass_fields__[name].metadata["flag"]
    assert is_tested(name) or (flag and is_tested(flag))


def test_every_rule_of_drop_is_documented_in_its_order() -> None:
    table = PAGES["data.md"].split("| rule |")[1].split("\n\n")[0]
    assert tuple(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)) == DROPS


NAMED = {"drop": "all", "repair": "text"}
"""Settings that take names of their own only."""

# --- environment variables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_taken_from_the_environment(name: str) -> None:
    default = SECTIONS[SETTINGS[name]].__dataclass_fields__[name].default
    value = NAMED.get(name) or ("8" if default in (None, ()) else str(default))
    assert name in make_config(from_environment({f"WHET_{name.upper()}": value})).given


def test_every_documented_variable_is_read_by_the_code() -> None:
    named = {name for page in PAGES.values() for name in re.findall(r"WHET_[A-Z_]+", page)}
    settings = {f"WHET_{name.upper()}" for name in SETTINGS}
    assert named <= settings | RESERVED_VARIABLES
    assert named >= RESERVED_VARIABLES, "a variable that nothing documents"
    assert all(is_tested(name) for name in RESERVED_VARIABLES)


# --- exit codes -----------------------------------------------------------------------------------------------------


def damaged_model(place: Path, model: Path, _: Path) -> list[str]:
    write(place / "model" / "config.json", (model / "config.json").read_bytes())
    write(place / "model" / "model.safetensors", b"not a model")
    return ["predict", str(place / "model"), str(place / "rows.csv")]


def out_of_time(place: Path, model: Path, _: Path) -> list[str]:
    return train_arguments(place / "rows.csv", model, place / "run", max_minutes=1e-6)


def a_file_in_the_way(place: Path, model: Path, _: Path) -> list[str]:
    write(place / "runs", "a file, and no folder")
    return train_arguments(place / "rows.csv", model, place / "runs" / "run")


def not_finite(place: Path, _: Path, poisoned: Path) -> list[str]:
    return train_arguments(poisoned_source(place), poisoned, place / "run", order="sequential")


ENDS: dict[int, Callable[[Path, Path, Path], list[str]]] = {
    0: lambda place, *_: ["check", str(place / "rows.csv")],
    2: lambda place, *_: ["check", str(place / "missing.csv")],
    3: damaged_model,
    4: a_file_in_the_way,
    5: not_finite,
    75: out_of_time,
}


@pytest.mark.parametrize("code", ENDS)
def test_a_documented_exit_code_comes(
    code: int, tmp_path: Path, tiny_model_folder: Path, poisoned: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.csv")
    assert main(ENDS[code](tmp_path, tiny_model_folder, poisoned)) == code


def test_every_documented_exit_code_is_one_of_these() -> None:
    said = " ".join(PAGES["README.md"].split("Exit codes that scripts can trust:")[1].split("\n\n")[0].split())
    assert {int(number) for number in re.findall(r"(?:^|, )\s*(\d+) ", f", {said}")} == set(ENDS)
