"""Faults of the world, injected for real: full disks, limits, links, other runs, bad numbers, too little memory."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import whet
from whet.config import make_config
from whet.errors import ArtifactError, Diverged, EnvironmentFault, UsageError
from whet.records import End, Finding, Step
from whet.runs.folder import RunFolder
from whet.tools.selftest.tiny_run import differences, run_contents, write_model, write_rows
from whet.training.checkpoints import CheckpointFolder
from whet.training.run import train_run


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
    return {**chosen, "recipe": "course", "precision": "float32", "run": "run", **changes}


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
    from whet.engine.network import Network

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
    before = run_contents(run.path)
    without_end(run.path)
    again = whet.fit(source, **settings(model, batch_size=4, eval_batch_size=4))
    assert differences(before, run_contents(again.path)) == []


def test_another_number_of_rows_that_was_accepted_is_taken(source: Path, model: Path, forgetful: Forgetful) -> None:
    run = whet.fit(source, **settings(model, batch_size=1, eval_batch_size=2))
    without_end(run.path)
    forgetful.seen.clear()
    whet.fit(source, accept_changes=True, **settings(model, batch_size=1, eval_batch_size=1))
    assert set(forgetful.seen) == {1}


def test_one_row_that_does_not_fit_is_an_environment_fault(source: Path, model: Path, forgetful: Forgetful) -> None:
    forgetful.most = 0
    with pytest.raises(EnvironmentFault, match="One row at a time does not fit into memory"):
        whet.fit(source, **settings(model))


def test_another_error_of_the_model_is_not_taken_for_memory(
    source: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.engine.network import Network

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
    from whet.runs.verdict.judge import verdict_of

    monkeypatch.chdir(tmp_path)
    with pytest.raises(Diverged):
        whet.fit(poisoned_source(tmp_path), **settings(poisoned, order="sequential", probe_rows=0))
    assert "diverge" in verdict_of(RunFolder.open("run").records()).sentence.lower()


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_run_folder_of_another_run_is_not_overwritten(source: Path, model: Path) -> None:
    whet.fit(source, **settings(model))
    before = run_contents(Path("run"))
    without_end(Path("run"))
    with pytest.raises(UsageError, match="was started with other settings: seed was 42, is 5"):
        whet.fit(source, **settings(model, seed=5))
    assert before["files"] == run_contents(Path("run"))["files"]


@pytest.mark.parametrize("name", ["checkpoints", "model", "records.jsonl"])
def test_a_link_in_a_run_is_not_followed(name: str, source: Path, model: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", make_config({"source": str(source), **settings(model)}))
    (tmp_path / "victim").mkdir()
    (run.path / name).symlink_to(tmp_path / "victim")
    with pytest.raises(EnvironmentFault, match="is a link"):
        whet.fit(source, **settings(model))
    assert not list((tmp_path / "victim").iterdir())


def test_a_disk_that_is_too_small_is_said_before_training(source: Path, model: Path, small_disk: Path) -> None:
    free = shutil.disk_usage(small_disk).free
    (small_disk / "ballast").write_bytes(bytes(free - 2**16))
    with pytest.raises(EnvironmentFault, match=r"The run needs about .* are free"):
        whet.fit(source, **settings(model, run=str(small_disk / "run")))
    assert [entry.name for entry in small_disk.iterdir()] == ["ballast"]


@pytest.mark.parametrize("left", [0.02, 0.15, 0.3])
def test_a_full_file_system_ends_with_4_and_room_lets_it_go_on(
    left: float, source: Path, model: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import whet.training.estimate

    chosen = settings(model, run=str(small_disk / "run"), epochs=2, save_every=3)
    reference = run_contents(whet.fit(source, **settings(model, run="reference/run", epochs=2, save_every=3)).path)
    ballast = small_disk / "ballast"
    free = shutil.disk_usage(small_disk).free
    ballast.write_bytes(bytes(int(free - left * 2**20)))
    monkeypatch.setattr(whet.training.estimate, "require_disk", lambda path, needed: None)
    with pytest.raises(EnvironmentFault, match="No space left"):
        whet.fit(source, **chosen)
    kept, damaged = CheckpointFolder(small_disk / "run" / "checkpoints").load_newest()
    assert damaged == []
    assert (kept is not None) == (left > 0.1)
    ballast.unlink()
    assert differences(reference, run_contents(whet.fit(source, **chosen).path)) == []


def test_a_full_disk_while_the_model_is_written_is_an_environment_fault(
    source: Path, model: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.training import export as finish

    real = finish.save_model
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free - 2**13))

    def save(trained: Any, tokenizer: Any, scratch: Path) -> Any:
        """Only the model goes to the full disk: other threads write records and checkpoints at the same time."""
        return real(trained, tokenizer, small_disk / scratch.name)

    reference = run_contents(whet.fit(source, **settings(model, run="reference/run")).path)
    monkeypatch.setattr(finish, "save_model", save)
    with pytest.raises(EnvironmentFault, match="The model could not be written"):
        whet.fit(source, **settings(model))
    monkeypatch.setattr(finish, "save_model", real)
    assert differences(reference, run_contents(whet.fit(source, **settings(model)).path)) == []


def test_tokenizers_has_no_error_of_its_own_for_a_full_disk(
    source: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.training import export as finish

    def save(*given: Any) -> None:
        raise Exception("No space left on device (os error 28)")

    monkeypatch.setattr(finish, "save_model", save)
    with pytest.raises(EnvironmentFault, match=r"The model could not be written .* No space left"):
        whet.fit(source, **settings(model))


def test_a_tokenizer_may_write_a_folder_of_its_own(source: Path, model: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    shutil.copytree(model, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.chat_template = {"default": "{{ messages }}", "other": "{{ messages }}"}
    tokenizer.save_pretrained(tmp_path / "model")
    run = whet.fit(source, **settings(tmp_path / "model"))
    inner = [file for file in run.path.glob("model/*/*") if file.is_file()]
    assert inner
    whet.load(run.path)
    inner[0].write_text("changed")
    with pytest.raises(ArtifactError, match="damaged or changed"):
        whet.load(run.path)


def test_a_model_that_did_not_come_to_its_place_leaves_nothing(
    source: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whet.training import export as finish

    def look(*given: Any) -> Any:
        raise ArtifactError("The best weights are damaged.")

    reference = run_contents(whet.fit(source, **settings(model, run="reference/run")).path)
    with monkeypatch.context() as patched:
        patched.setattr(finish, "_predict_final_splits", look)
        with pytest.raises(ArtifactError, match="damaged"):
            whet.fit(source, **settings(model))
    assert not [entry.name for entry in Path("run").iterdir() if "model" in entry.name]
    assert differences(reference, run_contents(whet.fit(source, **settings(model)).path)) == []


def test_a_model_that_a_kill_left_unfinished_counts_as_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from whet.training import estimate

    needed = estimate.Estimate(1, 1.0, 1.0, 1, disk_mb=1.0)
    monkeypatch.setattr(estimate.shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    with pytest.raises(EnvironmentFault, match="The run needs about 1 MB"):
        estimate.require_disk(tmp_path, needed)
    unfinished = RunFolder(tmp_path).unfinished_model
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(bytes(2**20))
    estimate.require_disk(tmp_path, needed)


def test_the_model_that_is_written_has_a_configuration_of_its_own(model: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    from whet.training.export import _copy_to_save

    computing = AutoModelForSequenceClassification.from_pretrained(model)
    written = _copy_to_save(computing)
    computing.config._attn_implementation = "another"
    assert written.config._attn_implementation != "another"
    assert written.state_dict().keys() == computing.state_dict().keys()
    assert all(each is other for each, other in zip(written.parameters(), computing.parameters(), strict=True))


# --- helpers of a training --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_a_tracker_that_cannot_write_is_said_and_the_run_ends_as_without_it(source: Path, model: Path) -> None:
    pytest.importorskip("tensorboard")
    reference = run_contents(whet.fit(source, **settings(model, run="reference/run")).path)
    config = make_config({"source": str(source), **settings(model, report_to="tensorboard")})
    (RunFolder.create(Path("run"), config).path / "tensorboard").write_text("a file where its folder should be")
    said: list[str] = []
    run = train_run(str(source), config, echo=said.append)
    assert [line for line in said if "tracker tensorboard stopped, and training goes on" in line]
    assert differences(reference, run_contents(run.path)) == []


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="who a process has started stands in /proc")
def test_a_training_has_no_helper_process_that_could_die_or_hang(source: Path, model: Path) -> None:
    def children() -> set[str]:
        found: set[str] = set()
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread may have ended meanwhile
                found.update((task / "children").read_text().split())
        return found

    before, seen = children(), []
    config = make_config({"source": str(source), **settings(model)})
    train_run(str(source), config, on_event=lambda event, job: seen.append(children() - before))
    assert seen
    assert not set().union(*seen)
