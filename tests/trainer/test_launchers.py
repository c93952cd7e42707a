"""A script with a Trainer under the real launchers: torchrun and accelerate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import small_model
from tests.trainer.made import make_rows, make_trainer
from whet.records import Save
from whet.runs.folder import RunFolder

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "scripts" / "trainer.py"
TORCHRUN = ("torch.distributed.run", "--nproc-per-node", "2")
PLAIN = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
# Its --cpu means one process; these are two, and the environment keeps them on the CPU.
ACCELERATE = ("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", *PLAIN)

pytestmark = pytest.mark.slow


def start(launcher: tuple[str, ...], folder: Path, epochs: int) -> subprocess.Popen[str]:
    own = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, str(SCRIPT), str(folder), str(epochs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **own},
        start_new_session=True,
    )


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_a_script_trains_as_one_process_with_the_same_rows_a_step(launcher: tuple[str, ...], tmp_path: Path) -> None:
    process = start(launcher, tmp_path / "two", 2)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    settings = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "learning_rate": 1e-3}
    rows = {"train": make_rows(37), "evaluation": make_rows(11, seed=1)}
    one = make_trainer(tmp_path / "one", model=small_model(), **rows, **settings)
    one.train()
    told = [json.loads((tmp_path / "two" / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert told[0] == told[1]
    assert told[0]["steps"] == one.state.max_steps
    assert told[0]["eval_loss"] == pytest.approx(one.evaluate()["eval_loss"], rel=1e-4)
    np.testing.assert_allclose(told[0]["predictions"], one.predict(make_rows(13, seed=2)).predictions, atol=1e-3)
    assert len([line for line in out.splitlines() if line.startswith("step  5/10") and "grad_norm" in line]) == 1


def test_ctrl_c_at_the_terminal_saves_once(tmp_path: Path) -> None:
    process = start(TORCHRUN, tmp_path, 5000)
    until = time.monotonic() + 120
    while not (tmp_path / "checkpoint-20").is_dir():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the launcher and to all that it started
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "resume_from_checkpoint=True" in err
    saved = [record for record in RunFolder.open(tmp_path).all_records() if isinstance(record, Save)]
    assert len([record for record in saved if record.reason == "interrupted"]) == 1
