"""A script with a Trainer under the real launchers: torchrun and accelerate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whet.huggingface.checkpoints import newest_whole
from whet.records import Save
from whet.runs.folder import RunFolder

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "scripts" / "trainer.py"
TORCHRUN = ("torch.distributed.run", "--nproc-per-node", "2")
PLAIN = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
# Its --cpu means one process; these are two, and the environment keeps them on the CPU.
ACCELERATE = ("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", *PLAIN)

pytestmark = pytest.mark.slow


def start(launcher: tuple[str, ...], folder: Path, epochs: int, *more: str) -> subprocess.Popen[str]:
    own = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, str(SCRIPT), str(folder), str(epochs), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **own},
        start_new_session=True,
    )


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_a_script_trains_as_with_the_librarys_class(launcher: tuple[str, ...], tmp_path: Path) -> None:
    told: list[list[dict[str, Any]]] = []
    for more in ((), ("stock",)):
        folder = tmp_path / "-".join(("run", *more))
        process = start(launcher, folder, 2, *more)
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        told.append([json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)])
    (ours, others), (stock, _) = told
    assert ours == others
    assert ours["path"].startswith("packed")
    np.testing.assert_allclose(ours["losses"], stock["losses"], rtol=1e-5)
    assert ours["eval_loss"] == pytest.approx(stock["eval_loss"], rel=1e-5)
    np.testing.assert_allclose(ours["predictions"], stock["predictions"], atol=1e-5)


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
    assert [record.reason for record in saved].count("interrupted") == 1
    assert newest_whole(tmp_path) == tmp_path / saved[-1].path
