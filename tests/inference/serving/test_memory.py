"""The memory of a server stays where it is after its first requests, of whatever sizes they are."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.inference.serving.models import save_run
from whet.tools.selftest.tiny_run import WORDS
from whet.utils import memory

PARTS, REQUESTS = 10, 60


def test_a_server_limits_what_is_compiled_for_it_unless_the_user_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    memory.bound_compiled_code()
    kept = str(memory.COMPILED_PRODUCTS)
    assert (os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"], os.environ["LRU_CACHE_CAPACITY"]) == (kept, "7")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")


def resident_mb(process: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_is_flat_after_the_first_tenth_of_the_requests(tiny_model_folder: Path, tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", tiny_model_folder)
    command = [sys.executable, "-m", "whet", "serve", str(run), "--port", "0", "--device", "cpu", "--precision", "bf16"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    try:
        port = int(server.stdout.readline().rstrip("/\n").rpartition(":")[2])
        used = []
        chosen = random.Random(0)
        with httpx.Client(timeout=60) as http:
            for _ in range(PARTS):
                for _ in range(REQUESTS):
                    sizes = [chosen.randint(1, 30) for _ in range(chosen.randint(1, 64))]
                    texts = [" ".join(chosen.choices(WORDS, k=size)) for size in sizes]
                    assert http.post(f"http://127.0.0.1:{port}/predict", json={"inputs": texts}).status_code == 200
                    with socket.create_connection(("127.0.0.1", port)) as rough:  # leaves, or sends no HTTP
                        rough.sendall(chosen.choice((b"POST /predict HTTP/1.1\r\n", chosen.randbytes(3000))))
                used.append(resident_mb(server.pid))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
        server.stdout.close()
    assert max(used[1:]) < 1.05 * used[0], used
