"""Faults of the world as `whet train` meets them: real processes, signals, limits and file systems; exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.inference.serving.models import save_run
from whet.records import End, Step
from whet.runs.folder import RunFolder
from whet.tools.selftest.fork_client import Command, ForkServer
from whet.tools.selftest.tiny_run import run_contents, train_arguments, write_model, write_rows
from whet.tools.selftest.trials import InterruptionTrials, Tally
from whet.training.checkpoints import CheckpointFolder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_model(folder)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_rows(tmp_path / "rows.csv", 40)
    return tmp_path / "rows.csv"


@pytest.fixture
def home(laboratory: InterruptionTrials, request: pytest.FixtureRequest) -> Path:
    return laboratory._home(request.node.name)


def begin(warm: ForkServer, folder: Path, arguments: list[str], **request: Any) -> Command:
    folder.mkdir(exist_ok=True)
    return warm.start(arguments, folder, environment={"WHET_CACHE": str(folder / "cache")}, **request)


def command(warm: ForkServer, folder: Path, arguments: list[str], **request: Any) -> tuple[int | None, str]:
    started = begin(warm, folder, arguments, **request)
    return started.wait(), started.output.read_text()


def until(condition: Callable[[], Any]) -> None:
    while not condition():  # pytest's own limit ends a wait for what never happens
        time.sleep(0.002)


def has_step(run: Path, step: int) -> bool:
    return any(isinstance(record, Step) and record.step >= step for record in RunFolder(run).all_records())


# --- files ----------------------------------------------------------------------------------------------------------


def fill(disk: Path) -> Path:
    """Every byte that is left, taken by somebody else."""
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def test_a_disk_that_fills_up_while_training_ends_with_4_and_costs_no_checkpoint(
    laboratory: InterruptionTrials, small_disk: Path
) -> None:
    subject, home = laboratory.subjects[0], small_disk / "home"
    home.mkdir()
    checkpoints = CheckpointFolder(home / "run" / "checkpoints")
    started = laboratory.start(home, subject.model)
    until(checkpoints.steps)
    started.signal(signal.SIGSTOP)
    ballast = fill(small_disk)
    started.signal(signal.SIGCONT)
    assert started.wait() == 4
    kept, damaged = checkpoints.load_newest()
    assert damaged == []
    assert kept is not None
    ballast.unlink()
    tally = Tally("full disk")
    assert f"from step {kept.step} of" in laboratory._finish(home, subject, tally)
    assert (tally.exact, tally.troubles) == (1, [])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full is a thing of Linux")
@pytest.mark.parametrize("argument", ["no-such-run", "--no-such-flag"])
def test_an_error_that_no_disk_has_room_for_keeps_its_exit_code(argument: str) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-m", "whet", "verdict", argument], stderr=full)
    assert ended.returncode == 2


def test_a_file_size_limit_ends_with_4(warm: ForkServer, source: Path, model: Path, tmp_path: Path) -> None:
    arguments = train_arguments(source, model, tmp_path / "run")
    status, said = command(warm, tmp_path / "home", arguments, limits={"RLIMIT_FSIZE": 40_000})
    assert status == 4, said
    assert "could not be written: File too large" in said
    assert "Traceback" not in said
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """A folder that can be closed for writing."""
    place, is_root = tmp_path / "closed", os.geteuid() == 0
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "tmpfs", place]
    if is_root and subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a read-only file system takes rights that this user does not have")

    def close() -> Path:
        if is_root:  # permissions do not bind root; a read-only file system does
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        else:
            for folder in (place, *(entry for entry in place.iterdir() if entry.is_dir())):
                folder.chmod(0o555)
        return place

    yield close
    if is_root:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("begun", [False, True])
def test_a_read_only_folder_ends_with_4_before_training(
    begun: bool, warm: ForkServer, source: Path, model: Path, tmp_path: Path, closed: Callable[[], Path]
) -> None:
    arguments = train_arguments(source, model, tmp_path / "closed" / "run")
    if begun:
        started = begin(warm, tmp_path / "before", arguments)
        until(lambda: has_step(tmp_path / "closed" / "run", 1))
        started.signal(signal.SIGKILL)
        assert started.wait() == -signal.SIGKILL
    closed()
    status, said = command(warm, tmp_path / "home", arguments)
    assert status == 4
    assert "Cannot write to" in said
    assert "Model:" not in said
    assert "Traceback" not in said


def test_a_second_command_for_a_folder_gets_4_and_the_first_is_not_disturbed(
    warm: ForkServer, laboratory: InterruptionTrials, home: Path, tmp_path: Path
) -> None:
    subject = laboratory.subjects[0]
    first = laboratory.start(home, subject.model)
    until(lambda: has_step(home / "run", 1))
    first.signal(signal.SIGSTOP)
    arguments = train_arguments(laboratory.source, subject.model, home / "run")
    status, said = command(warm, tmp_path / "second", arguments)
    assert status == 4
    assert "Another process is writing the run" in said
    first.signal(signal.SIGCONT)
    assert first.wait() == 0
    assert run_contents(home / "run") == subject.expected


def test_a_run_whose_checkpoints_are_all_damaged_ends_with_3(laboratory: InterruptionTrials, home: Path) -> None:
    subject = laboratory.subjects[0]
    for folder in laboratory._killed_with_checkpoints(home, subject):
        os.truncate(folder / "model.safetensors", 100)
    again = laboratory.start(home, subject.model)
    assert again.wait() == 3
    assert "model.safetensors' is damaged: it has 100 bytes" in again.output.read_text()


def test_other_settings_for_a_run_end_with_2(laboratory: InterruptionTrials, home: Path) -> None:
    subject = laboratory.subjects[0]
    laboratory._killed_with_checkpoints(home, subject)
    arguments = train_arguments(laboratory.source, subject.model, home / "run", lr=0.5)
    status, said = command(laboratory.warm, home, arguments)
    assert status == 2
    assert "learning_rate was 0.03, is 0.5" in said


# --- training -------------------------------------------------------------------------------------------------------


def test_numbers_that_are_not_finite_end_with_5(warm: ForkServer, source: Path, model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][5:] = float("inf")
    shutil.copytree(model, tmp_path / "poisoned")
    save_file(weights, tmp_path / "poisoned" / "model.safetensors", metadata={"format": "pt"})
    status, said = command(warm, tmp_path / "home", train_arguments(source, tmp_path / "poisoned", tmp_path / "run"))
    assert status == 5, said
    assert "stopped being finite at step 1" in said
    assert "Traceback" not in said
    assert len(json.loads((tmp_path / "run" / "divergence.json").read_text())["rows"]) == 4


def test_out_of_real_memory_takes_smaller_batches_and_the_same_steps(warm: ForkServer, tmp_path: Path) -> None:
    write_model(tmp_path / "wide", width=128, layers=2)
    write_rows(tmp_path / "many.csv", 1400)
    changes = {"batch_size": 1024, "max_steps": 1, "evaluations": 1}
    arguments = train_arguments(tmp_path / "many.csv", tmp_path / "wide", tmp_path / "run", **changes)
    status, said = command(warm, tmp_path / "home", arguments, limits={"RLIMIT_AS": 800 * 2**20})
    assert status == 0, said
    assert said.count("Out of memory: micro-batches of 512 rows from here on, the same rows per step.") == 1
    assert RunFolder.open(tmp_path / "run").records()[-1].step == 1


def test_a_model_larger_than_memory_is_said_in_one_line(warm: ForkServer, model: Path, tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", model)
    enlarge_embeddings(run / "model", rows=50_000_000)
    limits = {"RLIMIT_AS": 1500 * 2**20}
    status, said = command(warm, tmp_path / "home", ["predict", str(run), "--text", "yes"], limits=limits)
    assert status == 4, said
    assert "does not fit into memory" in said
    assert "Traceback" not in said


def enlarge_embeddings(model: Path, rows: int) -> None:
    """So many words in a file that has holes instead of their weights: it is large, and takes no room on the disk."""
    path, name = model / "model.safetensors", "bert.embeddings.word_embeddings.weight"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    end = len(content) - 8 - size
    width = header[name]["shape"][1]
    moved = {key: value for key, value in header.items() if key != name}
    moved[name] = {**header[name], "shape": [rows, width], "data_offsets": [end, end + 4 * rows * width]}
    # A format without gaps: what the old embeddings were belongs to nothing, under a name of its own.
    begin, until = header[name]["data_offsets"]
    moved["unused"] = {"dtype": "F32", "shape": [(until - begin) // 4], "data_offsets": [begin, until]}
    text = json.dumps(moved).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + content[8 + size :])
        file.truncate(8 + len(text) + end + 4 * rows * width)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": rows}))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_step_and_ends_with_75(
    number: signal.Signals, warm: ForkServer, source: Path, model: Path, tmp_path: Path
) -> None:
    started = begin(warm, tmp_path / "home", train_arguments(source, model, tmp_path / "run", epochs=200))
    until(lambda: has_step(tmp_path / "run", 3))
    started.signal(number)
    assert started.wait() == 75
    end = RunFolder.open(tmp_path / "run").records()[-1]
    assert isinstance(end, End)
    kept, damaged = CheckpointFolder(tmp_path / "run" / "checkpoints").load_newest()
    assert kept is not None
    assert (end.reason, end.step, damaged) == ("interrupted", kept.step, [])
    assert f"Interrupted: {number.name} was received." in started.output.read_text()


def test_a_second_signal_leaves_without_a_save_and_the_run_goes_on(laboratory: InterruptionTrials, home: Path) -> None:
    subject = laboratory.subjects[0]
    started = laboratory.start(home, subject.model)
    until(lambda: has_step(home / "run", 1))
    started.signal(signal.SIGSTOP)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
        started.signal(number)
    assert started.wait() == 75
    assert "Saved step" not in started.output.read_text()
    tally = Tally("two signals")
    laboratory._finish(home, subject, tally)
    assert (tally.exact, tally.troubles) == (1, [])


def test_kill_9_in_the_middle_of_a_save_takes_the_save_before(laboratory: InterruptionTrials, home: Path) -> None:
    subject, checkpoints = laboratory.subjects[0], CheckpointFolder(home / "run" / "checkpoints")
    for place in range(subject.boundaries // 2, subject.boundaries):
        laboratory.start(home, subject.model, watch=str(home), kill_at=place).wait()
        # Files of a checkpoint are there, and it has no name yet.
        if checkpoints.steps() and list(checkpoints.path.glob(".writing-step-*/*.safetensors")):
            break
        shutil.rmtree(home)
        home.mkdir()
    newest = checkpoints.steps()[-1]
    (home / "output.txt").unlink()
    tally = Tally("middle of a save")
    said = laboratory._finish(home, subject, tally).splitlines()
    assert [line for line in said if line.startswith(("Resuming", "Passed over"))] == [
        f"Resuming {home / 'run'} from step {newest} of {subject.expected['records'][-1]['step']}."
    ]
    assert (tally.exact, tally.troubles) == (1, [])


@pytest.mark.slow
def test_kill_9_at_every_file_boundary_ends_bit_exact(laboratory: InterruptionTrials) -> None:
    tally = Tally("boundaries")
    for subject in laboratory.subjects:
        for boundary in range(1, subject.boundaries + 1):
            laboratory.kill_at_boundary(tally, boundary, subject)
    assert (tally.exact, tally.troubles) == (tally.trials, [])
