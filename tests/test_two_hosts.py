"""Two network namespaces joined by a cable of their own, as two machines: they meet, train, lose the link, go on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from whet.records import Save
from whet.runs.folder import RunFolder

pytestmark = pytest.mark.slow
HOSTS = ("whet-a", "whet-b")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[None]:
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` here to make network namespaces with")
    try:
        ip("netns", "add", HOSTS[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no right to make network namespaces: {error.stderr.decode().strip()}")
    try:
        ip("netns", "add", HOSTS[1])
        ip("link", "add", "cable0", "netns", HOSTS[0], "type", "veth", "peer", "name", "cable1", "netns", HOSTS[1])
        for number, host in enumerate(HOSTS):
            ip("-n", host, "addr", "add", f"10.77.0.{number + 1}/24", "dev", f"cable{number}")
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "link", "set", f"cable{number}", "up")
        yield
    finally:
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hosts") / "reviews.csv"
    rows = [f"{('no', 'yes')[i % 2]} word {i % 7} and {i},{('bad', 'good')[i % 2]}" for i in range(61)]
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


def start(source: Path, model: Path, run: Path, port: int) -> list[subprocess.Popen[str]]:
    """torchrun on both hosts."""
    started = []
    for number, host in enumerate(HOSTS):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        meet = ["--node-rank", str(number), "--master-addr", "10.77.0.1", "--master-port", str(port), "-m", "whet"]
        settings = ["epochs=40", "batch_size=8", "save_every=20", "precision=float32", "device=cpu", f"run={run}"]
        train = ["train", str(source), "--model", str(model), *(f"--set={each}" for each in settings)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": f"cable{number}"}
        command = ["ip", "netns", "exec", host, *torchrun, *meet, *train]
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        )
    return started


def finish(started: list[subprocess.Popen[str]]) -> None:
    for process in started:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err


def kill(started: list[subprocess.Popen[str]]) -> None:
    """With everything they started, as a scheduler does: torchrun puts its workers into sessions of their own."""
    for process in started:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        process.kill()
        process.communicate()


def test_a_cut_link_costs_only_the_work_since_the_last_checkpoint(
    hosts: None, source: Path, tiny_model_folder: Path, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finish(start(source, tiny_model_folder, whole, 29611))
    started = start(source, tiny_model_folder, cut, 29612)
    while not (cut.is_dir() and any(isinstance(r, Save) and r.step == 40 for r in RunFolder(cut).all_records())):
        assert all(process.poll() is None for process in started)
        time.sleep(0.02)
    ip("-n", HOSTS[0], "link", "set", "cable0", "down")
    time.sleep(2)
    stands = RunFolder(cut).records()[-1].step
    time.sleep(2)
    assert RunFolder(cut).records()[-1].step == stands  # nobody trains on alone
    assert not RunFolder(cut).finished
    kill(started)
    ip("-n", HOSTS[0], "link", "set", "cable0", "up")
    finish(start(source, tiny_model_folder, cut, 29613))
    models = [run / "model" / "model.safetensors" for run in (whole, cut)]
    assert models[0].read_bytes() == models[1].read_bytes()
