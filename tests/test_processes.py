"""Two real processes on the CPU: the same training as one, one writer, and real kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import whet
from whet.distributed.group import DistributedContext
from whet.errors import UsageError
from whet.records import End, Evaluation, Record, Save, Step
from whet.runs.folder import RunFolder

SETTINGS = {
    "epochs": 40,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "evaluations": 3,
    "save_every": 20,
    "precision": "float32",
    "device": "cpu",
}

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "whet")
PLAIN = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
# Its --cpu means one process; these are two, and the environment keeps them on the CPU.
ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", *PLAIN, "-m", "whet")

UNLUCKY = (*TORCHRUN[:-2], str(Path(__file__).parent / "scripts" / "unlucky_rank.py"))


def write_rows(path: Path) -> Path:
    """61 rows: the split leaves 49 for training, so the last batch of an epoch has one row for two processes."""
    lines = [f"{('no', 'yes')[i % 2]} word {i % 7} and {i},{('bad', 'good')[i % 2]}" for i in range(61)]
    path.write_text("text,label\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    write_rows(folder / "reviews.csv")
    return folder


@pytest.fixture(scope="module")
def model(place: Path, tiny_model_folder: Path) -> Callable[[float], Path]:
    """The tiny model in the width that fused layers take, with this much dropout."""

    def make(dropout: float) -> Path:
        import torch
        from transformers import BertConfig, BertModel

        folder = place / f"model-{dropout}"
        if not folder.exists():
            shutil.copytree(tiny_model_folder, folder)
            rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
            config = BertConfig.from_pretrained(folder, hidden_size=64, num_attention_heads=1, **rates)
            torch.manual_seed(1)
            BertModel(config).save_pretrained(folder)
        return folder

    return make


def command(place: Path, model: Path, run: str, *more: str) -> list[str]:
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    files = [str(place / "reviews.csv"), "--model", str(model), f"--set=run={place / run}"]
    return ["train", *files, *settings, "--json", *more]


def start(arguments: list[str], launcher: tuple[str, ...] = ("-m", "whet")) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    return subprocess.Popen(
        [sys.executable, *launcher, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def processes_of(launcher: subprocess.Popen[str]) -> list[int]:
    """The ranks' process ids, by rank."""
    found = {}
    for child in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        names = dict(
            pair.split("=", 1) for pair in Path(f"/proc/{child}/environ").read_text().split("\0") if "=" in pair
        )
        if "RANK" in names:
            found[int(names["RANK"])] = int(child)
    return [found[rank] for rank in sorted(found)]


def send_after_a_save(launcher: subprocess.Popen[str], run: Path, rank: int, number: int) -> None:
    """A real signal to one rank, once the second checkpoint is recorded."""
    until = time.monotonic() + 200
    while launcher.poll() is None and time.monotonic() < until:
        if run.is_dir() and any(isinstance(r, Save) and r.step == 40 for r in RunFolder(run).all_records()):
            os.kill(processes_of(launcher)[rank], number)
            return
        time.sleep(0.1)
    launcher.kill()
    raise AssertionError(launcher.communicate()[1])


def curve(records: list[Record]) -> list[float]:
    return [record.loss for record in records if isinstance(record, Step | Evaluation)]


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def two(place: Path, model: Callable[[float], Path]) -> tuple[Path, str, str]:
    """A run of two processes without dropout, what it printed and what it said."""
    code, out, err = finished(start(command(place, model(0.0), "two", "--processes", "2")))
    assert code == 0, err
    return place / "two", out, err


@pytest.fixture(scope="module")
def one(place: Path, model: Callable[[float], Path]) -> whet.Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHET_CACHE", str(place / "cache"))
        return whet.fit(place / "reviews.csv", model=str(model(0.0)), run=str(place / "one"), **SETTINGS)


def test_two_processes_train_as_one_does(one: whet.Run, two: tuple[Path, str, str]) -> None:
    records = RunFolder(two[0]).records()
    np.testing.assert_allclose(curve(records), curve(one.records), rtol=1e-3, atol=1e-5)
    printed = json.loads(two[1])["metrics"]
    assert printed == pytest.approx(one.metrics, rel=1e-3)
    assert RunFolder(two[0]).environment["processes"] == 2


def test_every_row_is_predicted_once_and_in_order(one: whet.Run, two: tuple[Path, str, str]) -> None:
    import pyarrow.parquet as pq

    ours, theirs = (pq.read_table(path / "predictions.parquet").to_pydict() for path in (two[0], one.path))
    assert ours["row"] == theirs["row"]
    np.testing.assert_allclose(ours["logits"], theirs["logits"], atol=1e-3)


def test_a_split_model_ends_as_a_whole_one(one: whet.Run, place: Path, model: Callable[[float], Path]) -> None:
    code, _, err = finished(start(command(place, model(0.0), "split", "--processes", "2", "--shard")))
    assert code == 0, err
    records = RunFolder(place / "split").records()
    np.testing.assert_allclose(curve(records), curve(one.records), rtol=2e-3, atol=1e-5)
    split, whole = (loaded.predict(["yes word 3"])[0] for loaded in (whet.load(place / "split"), one))
    assert split.label == whole.label
    assert "--shard" in RunFolder(place / "split").environment["path_why"]


def test_one_process_out_of_memory_changes_no_prediction(
    two: tuple[Path, str, str], place: Path, model: Callable[[float], Path]
) -> None:
    import pyarrow.parquet as pq

    # The fifth is the last evaluation's: then one process has kept its validation rows for the end, and one has not.
    code, _, err = finished(start(command(place, model(0.0), "tight"), (*UNLUCKY, "5")))
    assert code == 0, err
    tables = [pq.read_table(run / "predictions.parquet").to_pydict() for run in (place / "tight", two[0])]
    np.testing.assert_allclose(tables[0]["logits"], tables[1]["logits"], atol=1e-4)


def test_a_split_model_that_does_not_fit_in_an_evaluation_ends_all(place: Path, model: Callable[[float], Path]) -> None:
    code, _, err = finished(start(command(place, model(0.0), "tight-split", "--shard"), (*UNLUCKY, "3")))
    assert code != 0
    assert err.count("--eval-batch-size 2") == 1, err
    assert err.count("exitcode  : 4") == 2, err


def test_weights_that_are_damaged_for_one_process_make_no_model(place: Path, model: Callable[[float], Path]) -> None:
    code, _, err = finished(start(command(place, model(0.0), "damaged"), (*UNLUCKY, "damage")))
    assert code != 0
    assert err.count("does not match its SHA-256") == 1, err
    assert err.count("exitcode  : 3") == 2, err
    assert not (place / "damaged" / "model").exists()
    assert not any(isinstance(each, End) for each in RunFolder(place / "damaged").records())


def test_what_happens_is_told_once(two: tuple[Path, str, str]) -> None:
    lines = two[2].splitlines()
    assert len([line for line in lines if line.startswith("Model:")]) == 1
    assert len(two[1].splitlines()) == 1


def test_a_signal_to_one_process_saves_once_and_leaves_with_75(place: Path, model: Callable[[float], Path]) -> None:
    run = place / "stopped"
    process = start(command(place, model(0.0), "stopped", "--processes", "2", "--restarts", "1"))
    send_after_a_save(process, run, 1, signal.SIGTERM)
    code, _, err = finished(process)
    assert code == 75
    assert err.count("Interrupted") == 1
    saves = [r for r in RunFolder(run).all_records() if isinstance(r, Save) and r.reason == "interrupted"]
    assert len(saves) == 1


def test_an_error_of_all_processes_is_told_once(place: Path, model: Callable[[float], Path]) -> None:
    process = start(["train", str(place / "nowhere.csv"), "--model", str(model(0.0))], TORCHRUN)
    code, _, err = finished(process)
    assert code == 1  # torchrun has no other
    assert err.count("whet: ") == 1
    assert "nowhere.csv" in err


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_is_named_and_all_leave(place: Path, model: Callable[[float], Path], rank: int) -> None:
    name = f"killed-{rank}"
    process = start(command(place, model(0.1), name, "--processes", "2"))
    send_after_a_save(process, place / name, rank, signal.SIGKILL)
    code, _, err = finished(process)
    assert code == 4
    assert f"Rank {rank} " in err
    assert "SIGKILL" in err


@pytest.fixture(scope="module")
def with_dropout(place: Path, model: Callable[[float], Path]) -> Path:
    code, _, err = finished(start(command(place, model(0.1), "dropout", "--processes", "2")))
    assert code == 0, err
    return place / "dropout"


@pytest.mark.slow
def test_restarted_processes_end_with_the_same_bytes(
    place: Path, model: Callable[[float], Path], with_dropout: Path
) -> None:
    process = start(command(place, model(0.1), "again", "--processes", "2", "--restarts", "2"))
    send_after_a_save(process, place / "again", 1, signal.SIGKILL)
    code, _, err = finished(process)
    assert code == 0, err
    assert weights(place / "again") == weights(with_dropout)
    assert curve(RunFolder(place / "again").records()) == curve(RunFolder(with_dropout).records())


@pytest.mark.slow
def test_a_restarted_split_model_ends_with_the_same_bytes(place: Path, model: Callable[[float], Path]) -> None:
    undisturbed = start(command(place, model(0.1), "split-whole", "--processes", "2", "--shard"))
    assert finished(undisturbed)[0] == 0
    process = start(command(place, model(0.1), "split-again", "--processes", "2", "--shard", "--restarts", "1"))
    send_after_a_save(process, place / "split-again", 1, signal.SIGKILL)
    code, _, err = finished(process)
    assert code == 0, err
    assert weights(place / "split-again") == weights(place / "split-whole")


@pytest.mark.slow
def test_an_interrupted_run_of_two_goes_on_to_the_same_bytes(
    place: Path, model: Callable[[float], Path], with_dropout: Path
) -> None:
    process = start(command(place, model(0.1), "later", "--processes", "2"))
    send_after_a_save(process, place / "later", 0, signal.SIGTERM)
    assert finished(process)[0] == 75
    assert finished(start(command(place, model(0.1), "later", "--processes", "2")))[0] == 0
    assert weights(place / "later") == weights(with_dropout)


@pytest.mark.slow
def test_another_number_of_processes_goes_on_and_says_so(
    place: Path, model: Callable[[float], Path], one: whet.Run
) -> None:
    process = start(command(place, model(0.0), "fewer", "--processes", "2"))
    send_after_a_save(process, place / "fewer", 1, signal.SIGTERM)
    assert finished(process)[0] == 75
    code, out, err = finished(start(command(place, model(0.0), "fewer")))
    assert code == 0
    assert "only within tolerance" in err
    assert json.loads(out)["metrics"] == pytest.approx(one.metrics, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_other_launchers_start_the_same_run(
    place: Path, model: Callable[[float], Path], launcher: tuple[str, ...], with_dropout: Path
) -> None:
    name = f"by-{launcher[1].split('.')[0]}"
    code, _, err = finished(start(command(place, model(0.1), name), launcher))
    assert code == 0, err
    assert weights(place / name) == weights(with_dropout)


def test_an_argument_of_the_launcher_is_checked_before_anything_starts(place: Path) -> None:
    code, _, err = finished(start(["train", str(place / "reviews.csv"), "--processes", "0"]))
    assert code == 2
    assert "processes" in err


def test_one_process_exchanges_nothing() -> None:
    alone = DistributedContext()
    assert (alone.broadcast_object(3), alone.gather(3), alone.any_rank(False)) == (3, [3], False)
    with pytest.raises(UsageError), alone.raise_on_all_ranks(), alone.publish_error():
        raise UsageError("mine")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stock", "step"])
def test_the_loop_of_accelerate_runs_on_our_names(place: Path, model: Callable[[float], Path], how: str) -> None:
    script, result = Path(__file__).parent / "scripts" / "accelerate_loop.py", place / f"loop-{how}.json"
    arguments = [str(script), str(place / "reviews.csv"), str(model(0.1)), str(result), how]
    code, _, err = finished(start(arguments, ACCELERATE[:-2]))
    assert code == 0, err
    found = json.loads(result.read_text())
    assert (found["processes"], found["rows"]) == (2, 61)
    assert found["accuracy"] > 0.9
    assert found["sums"][0] == found["sums"][1]  # both processes hold the same weights
