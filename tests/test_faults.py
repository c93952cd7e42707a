"""Faults of the world, injected for real: full disks, limits, locks, links, bad numbers, hostile models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.config import make_config
from whet.errors import Diverged, EnvironmentFault, UsageError
from whet.playground import differences, story, train_arguments, write_model, write_rows
from whet.records import End, Finding, Step
from whet.runs.store import RunFolder
from whet.selftest import Laboratory, Tally, Warm


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_model(folder)
    return folder


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.csv", 40)
    return tmp_path / "rows.csv"


def settings(model: Path, **changes: Any) -> dict[str, Any]:
    chosen = {"model": str(model), "epochs": 1, "batch_size": 4, "learning_rate": 1e-3, "evaluations": 2}
    return {**chosen, "precision": "float32", "run": "run", **changes}


def without_end(run: Path) -> None:
    """As if it had been killed while it finished."""
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join(line for line in lines if '"kind": "end"' not in line))


# --- memory ---------------------------------------------------------------------------------------------------------


class Forgetful:
    """Stands before a network's forward pass and lets it run out of memory above so many rows."""

    def __init__(self, real: Any, most: int) -> None:
        self.real, self.most, self.seen = real, most, []  # type: ignore[var-annotated]

    def __call__(self, network: Any, batch: Any) -> Any:
        import torch

        rows = len(batch.labels)
        self.seen.append(rows)
        if rows > self.most:
            raise torch.OutOfMemoryError(f"cannot hold {rows} rows")
        return self.real(network, batch)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Forgetful:
    from whet.engine.feed import Network

    made = Forgetful(Network.logits, most=2)
    monkeypatch.setattr(Network, "logits", lambda network, batch: made(network, batch))
    return made


def test_out_of_memory_halves_micro_batches_and_keeps_the_steps(
    source: Path, model: Path, forgetful: Forgetful
) -> None:
    run = whet.fit(source, **settings(model, batch_size=8))
    findings = [record for record in run.records if isinstance(record, Finding)]
    assert [finding.details for finding in findings if "micro_rows" in finding.details] == [
        {"micro_rows": 4},
        {"micro_rows": 2},
    ]
    assert run.records[-1].step == 4
    assert forgetful.seen.count(2) >= 12


def test_out_of_memory_in_an_evaluation_halves_its_batches_and_is_said_once_each(
    source: Path, model: Path, forgetful: Forgetful
) -> None:
    run = whet.fit(source, **settings(model, batch_size=2, eval_batch_size=4))
    findings = [record for record in run.records if isinstance(record, Finding)]
    assert [finding.details for finding in findings] == [{"evaluation_rows": 2}]


def test_halved_batches_are_remembered_across_an_interruption(
    source: Path, model: Path, forgetful: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = whet.fit(source, **settings(model, batch_size=4, eval_batch_size=4))
    before = story(run.path)
    without_end(run.path)
    again = whet.fit(source, **settings(model, batch_size=4, eval_batch_size=4))
    assert differences(before, story(again.path)) == []


def test_one_row_that_does_not_fit_is_an_environment_fault(source: Path, model: Path, forgetful: Forgetful) -> None:
    forgetful.most = 0
    with pytest.raises(EnvironmentFault, match="One row at a time does not fit into memory"):
        whet.fit(source, **settings(model))


def test_another_error_of_the_model_is_not_taken_for_memory(
    source: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.engine.feed import Network

    def fail(network: Any, batch: Any) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(Network, "logits", fail)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        whet.fit(source, **settings(model))


# --- divergence -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[16, 64], ids=["general", "fused"])
def poisoned(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A model whose embedding of the digit 9 at a word's start is infinite: only rows with it go wrong."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "poisoned"
    write_model(folder, request.param)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    weights = load_file(folder / "model.safetensors")
    name = next(key for key in weights if key.endswith("word_embeddings.weight"))
    weights[name][vocabulary["9"]] = torch.inf
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def poisoned_source(folder: Path) -> Path:
    """Files of their own, so that the bad row is in training only, and late."""
    data = folder / "data"
    data.mkdir()
    rows = [f"{('yes', 'no')[index % 2]} row {index + 10},{('good', 'bad')[index % 2]}" for index in range(60)]
    (data / "train.csv").write_text("\n".join(["text,label", *rows[:30], "yes 9,good", *rows[30:40]]) + "\n")
    for split in ("validation", "test"):
        others = [row.replace("row", split) for row in rows[40:50]]
        (data / f"{split}.csv").write_text("\n".join(["text,label", *others]) + "\n")
    return data


def test_a_loss_that_is_not_finite_never_reaches_the_weights(
    poisoned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    monkeypatch.chdir(tmp_path)
    data = poisoned_source(tmp_path)
    chosen = settings(poisoned, order="sequential", save_every=1, probe_rows=0, log_every=1)
    with pytest.raises(Diverged, match=r"at step 8; the weights stay") as raised:
        whet.fit(data, **chosen)
    assert "--lr" in raised.value.hint
    folder = RunFolder.open("run")
    assert "9" in {row["text"].split()[-1] for row in folder.read_json("divergence.json")["rows"]}
    end = folder.records()[-1]
    assert isinstance(end, End)
    assert (end.reason, end.step) == ("diverged", 7)
    newest = sorted(folder.checkpoints.iterdir())[-1]
    assert newest.name == "step-000007"
    finite = {name: bool(tensor.isfinite().all()) for name, tensor in load_file(newest / "model.safetensors").items()}
    assert [name for name, good in finite.items() if not good] == [
        name for name in finite if name.endswith("word_embeddings.weight")
    ]
    with pytest.raises(Diverged):
        whet.fit(data, **chosen)
    assert [record.step for record in folder.records() if isinstance(record, Step)] == list(range(1, 8))


def test_an_answer_that_is_not_finite_is_not_scored(
    poisoned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = poisoned_source(tmp_path)
    for split in ("train", "validation"):
        text = (data / f"{split}.csv").read_text().replace("yes 9,good\n", "")
        (data / f"{split}.csv").write_text(text + ("no 9,bad\n" if split == "validation" else ""))
    with pytest.raises(Diverged, match="answer to 1 of 11 validation rows is not a finite number"):
        whet.fit(data, **settings(poisoned, probe_rows=0))
    assert RunFolder.open("run").read_json("divergence.json")["rows"][0]["text"] == "no 9"


def test_the_verdict_of_a_diverged_run_says_so(poisoned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from whet.runs.verdict import verdict_of

    monkeypatch.chdir(tmp_path)
    with pytest.raises(Diverged):
        whet.fit(poisoned_source(tmp_path), **settings(poisoned, order="sequential", probe_rows=0))
    assert "diverge" in verdict_of(RunFolder.open("run").records()).sentence.lower()


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_run_folder_of_another_run_is_not_overwritten(source: Path, model: Path) -> None:
    whet.fit(source, **settings(model))
    before = story(Path("run"))
    without_end(Path("run"))
    with pytest.raises(UsageError, match="was begun with other settings: seed was 42, is 5"):
        whet.fit(source, **settings(model, seed=5))
    assert before["files"] == story(Path("run"))["files"]


@pytest.mark.parametrize("name", ["checkpoints", "model", "records.jsonl"])
def test_a_link_in_a_run_is_not_followed(name: str, source: Path, model: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", make_config({"source": str(source), **settings(model)}))
    (tmp_path / "victim").mkdir()
    (run.path / name).symlink_to(tmp_path / "victim")
    with pytest.raises(EnvironmentFault, match="is a link"):
        whet.fit(source, **settings(model))
    assert not list((tmp_path / "victim").iterdir())


def test_a_disk_that_is_too_small_is_said_before_training(
    source: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(EnvironmentFault, match=r"The run needs about .* are free"):
        whet.fit(source, **settings(model))
    assert not (Path("run") / "records.jsonl").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, three megabytes large."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system takes rights that this user does not have")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("left", [0.02, 0.15, 0.3])
def test_a_full_file_system_ends_with_4_and_room_lets_it_go_on(
    left: float, source: Path, model: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import whet.estimate

    chosen = settings(model, run=str(small_disk / "run"), epochs=2, save_every=3)
    reference = story(whet.fit(source, **settings(model, run="reference/run", epochs=2, save_every=3)).path)
    ballast = small_disk / "ballast"
    free = shutil.disk_usage(small_disk).free
    ballast.write_bytes(bytes(int(free - left * 2**20)))
    monkeypatch.setattr(whet.estimate, "require_disk", lambda path, needed: None)
    with pytest.raises(EnvironmentFault, match="No space left"):
        whet.fit(source, **chosen)
    ballast.unlink()
    assert differences(reference, story(whet.fit(source, **chosen).path)) == []


def test_a_full_disk_while_the_model_is_written_is_an_environment_fault(
    source: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    from whet import finish

    real = finish.save_model

    def save(*given: Any) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            real(*given)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    reference = story(whet.fit(source, **settings(model, run="reference/run")).path)
    monkeypatch.setattr(finish, "save_model", save)
    with pytest.raises(EnvironmentFault, match="The model could not be written"):
        whet.fit(source, **settings(model))
    monkeypatch.setattr(finish, "save_model", real)
    assert differences(reference, story(whet.fit(source, **settings(model)).path)) == []


# --- as a command ---------------------------------------------------------------------------------------------------


def command(warm: Warm, folder: Path, arguments: list[str], **request: Any) -> tuple[int | None, str]:
    folder.mkdir(exist_ok=True)
    request.setdefault("environment", {"WHET_CACHE": str(folder / "cache")})
    started = warm.start(arguments, folder, **request)
    return started.wait(), started.output.read_text()


def test_a_read_only_folder_ends_with_4_before_training(warm: Warm, source: Path, model: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    if os.geteuid() == 0:  # permissions do not bind root; a read-only file system does
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", closed], capture_output=True)
        if mounted.returncode:
            pytest.skip("a read-only file system takes rights that this user does not have")
    else:
        closed.chmod(0o555)
    try:
        status, said = command(warm, tmp_path / "home", train_arguments(source, model, closed / "run"))
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", closed], check=True)
    assert status == 4
    assert "Cannot write to" in said
    assert "Traceback" not in said


def test_two_runs_of_one_folder_the_second_gets_4(warm: Warm, source: Path, model: Path, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", make_config({"source": str(source)})).locked():
        status, said = command(warm, tmp_path / "home", train_arguments(source, model, tmp_path / "run"))
    assert status == 4
    assert "Another process is writing the run" in said


def test_a_file_size_limit_ends_with_4_and_the_last_checkpoint_stays_whole(
    warm: Warm, source: Path, model: Path, tmp_path: Path
) -> None:
    from whet.engine.checkpoint import CheckpointFolder

    arguments = train_arguments(source, model, tmp_path / "run")
    # Records outgrow the limit after some steps; a checkpoint never fits.
    status, said = command(warm, tmp_path / "home", arguments, limits={"RLIMIT_FSIZE": 40_000})
    assert status == 4, said
    assert "Traceback" not in said
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").load_newest()[1] == []


def test_out_of_real_memory_halves_or_ends_with_4(warm: Warm, source: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "wide", width=128, layers=2)
    write_rows(tmp_path / "many.csv", 3000)
    arguments = train_arguments(
        tmp_path / "many.csv", tmp_path / "wide", tmp_path / "run", batch_size=2048, epochs=1, evaluations=1
    )
    status, said = command(warm, tmp_path / "home", arguments, limits={"RLIMIT_AS": 700 * 2**20})
    assert status in (0, 4), said
    assert "Traceback" not in said
    if status == 0:
        assert "Out of memory: micro-batches of" in said


# --- kill -9 --------------------------------------------------------------------------------------------------------


def test_kill_9_in_the_middle_of_a_save_takes_the_save_before(laboratory: Laboratory) -> None:
    subject, home = laboratory.subjects[0], laboratory._home("middle-of-a-save")
    # The third checkpoint gets its manifest: everything is written, and nothing has its name yet.
    for place in range(subject.boundaries // 2, subject.boundaries):
        laboratory.start(home, subject.model, watch=str(home), kill_at=place).wait()
        left = list((home / "run" / "checkpoints").glob(".writing-step-*"))
        if left and list((home / "run" / "checkpoints").glob("step-*")):
            break
        shutil.rmtree(home)
        home.mkdir()
    (home / "output.txt").unlink()
    tally = Tally("middle of a save")
    said = laboratory._finish(home, subject, tally)
    assert said.count("Resuming") == 1
    assert (tally.exact, tally.troubles) == (1, [])


@pytest.mark.slow
def test_kill_9_at_every_file_boundary_ends_bit_exact(laboratory: Laboratory) -> None:
    tally = Tally("boundaries")
    for subject in laboratory.subjects:
        for boundary in range(1, subject.boundaries + 1):
            laboratory.kill_at_boundary(tally, boundary, subject)
    assert (tally.exact, tally.troubles) == (tally.trials, [])
