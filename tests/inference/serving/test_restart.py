"""A server with a trained run and 32 clients is killed and started again: no answer is wrong, and none is missing."""

from __future__ import annotations

import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import whet
from whet.tools.selftest.tiny_run import WORDS, write_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CLIENTS, REQUESTS = 32, 40
EXACT: Any = {"device": "cpu", "precision": "float32"}


@pytest.fixture(scope="module")
def run(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("restart")
    write_rows(place / "rows.csv", 200)
    settings = {"epochs": 1, "learning_rate": 1e-3, "model": str(tiny_model_folder), **EXACT}
    return whet.fit(str(place / "rows.csv"), run=str(place / "run"), **settings).path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Client(threading.Thread):
    """Asks one text after the other; where the connection is cut or the server is not there, the same one again."""

    def __init__(self, number: int, url: str, expected: dict[str, float]) -> None:
        super().__init__(daemon=True)
        self.url, self.expected = url, expected
        texts = list(expected)
        self.texts = [texts[(number * REQUESTS + index) % len(texts)] for index in range(REQUESTS)]
        self.answered = self.wrong = self.again = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            with httpx.Client(timeout=60) as http:
                for text in self.texts:
                    self._ask(http, text)
        except Exception as error:
            self.failure = error

    def _ask(self, http: httpx.Client, text: str) -> None:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            try:
                answer = http.post(f"{self.url}predict", json={"inputs": [text]})
            except httpx.TransportError:
                self.again += 1
                time.sleep(0.05)
                continue
            if answer.status_code == 503:  # it loads its model
                time.sleep(0.05)
                continue
            assert answer.status_code == 200, answer.text
            (found,) = answer.json()["predictions"]
            self.wrong += abs(found["probabilities"]["good"] - self.expected[text]) > 1e-4
            self.answered += 1
            return
        raise AssertionError("There was no answer in five minutes.")


def until(true: Any) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_clients_get_every_answer_although_the_server_is_killed(warm: Any, run: Path, tmp_path: Path) -> None:
    texts = [f"{('no', 'yes')[n % 2]} {' '.join(WORDS[: n % 9])} {n}" for n in range(500)]
    predicted = whet.load(run, **EXACT).predict(texts)
    expected = {text: each.probabilities["good"] for text, each in zip(texts, predicted, strict=True)}
    port = free_port()
    command = ["serve", str(run), "--port", str(port), "--device", "cpu", "--precision", "float32"]
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    server = warm.start(command, tmp_path / "first")
    clients = [Client(number, f"http://127.0.0.1:{port}/", expected) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    until(lambda: sum(client.answered for client in clients) > CLIENTS * REQUESTS // 4)
    server.signal(signal.SIGKILL)
    server.wait(60)
    cut_off = sum(client.answered for client in clients)
    server = warm.start(command, tmp_path / "second")
    until(lambda: not any(client.is_alive() for client in clients))
    assert [client.failure for client in clients] == [None] * CLIENTS
    assert cut_off < CLIENTS * REQUESTS
    assert sum(client.again for client in clients) >= CLIENTS  # all were there when it was killed
    assert sum(client.answered for client in clients) == CLIENTS * REQUESTS
    assert sum(client.wrong for client in clients) == 0
    assert httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200
    server.signal(signal.SIGTERM)
    assert server.wait(60) == 0
