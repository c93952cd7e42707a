"""The server over real sockets on 127.0.0.1, with a real small model."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.inference.serving.models import save_run
from whet.errors import ArtifactError, EnvironmentFault, UsageError
from whet.inference.predictor import Predictor
from whet.inference.serving import server as module
from whet.inference.serving.app import App
from whet.inference.serving.counters import Counters
from whet.inference.serving.requests import Limits
from whet.inference.serving.server import ModelServer, Settings, serve

LIMITS = Limits(body_bytes=60_000, rows=300, characters=500, read_seconds=0.5, deadline_seconds=20)
FLAGS = [
    "--allow-host",
    "a.example",
    "--queue-rows",
    "9",
    "--deadline",
    "5",
    "--max-rows",
    "9",
    "--max-mb",
    "1",
    "--host",
    "127.0.0.1",
]
SECRET = "zanzibar"
"""In every text that is sent; nothing may tell of it."""


@pytest.fixture(scope="module")
def run(tiny_model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("served"), tiny_model_folder)


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[ModelServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAVING_SECONDS", 0.0)
        patch.setattr(module, "HEAD_SECONDS", 0.5)
        found = serve(run, Settings(port=0, queue_rows=400, limits=LIMITS, device="cpu"))
        yield found
        found.stop()


def ask(server: ModelServer, content: Any, **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}predict", json=content, headers=headers, timeout=60)


def raw(server: ModelServer, sent: bytes, *, pause: float = 0.0) -> bytes:
    """Exactly these bytes, one at a time where there is a pause; what the server says until it closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        try:
            for part in [bytes([byte]) for byte in sent] if pause else [sent]:
                connection.sendall(part)
                time.sleep(pause)
        except OSError:
            pass  # it has closed already; its answer can still be read
        found = b""
        while b"\r\n\r\n" not in found and (part := connection.recv(65536)):
            found += part
        return found


def head(server: ModelServer, *lines: str, host: str | None = None) -> bytes:
    named = f"Host: {host or f'127.0.0.1:{server.port}'}"
    return "\r\n".join(["POST /predict HTTP/1.1", named, "Content-Type: application/json", *lines, "", ""]).encode()


@contextmanager
def held_up(server: ModelServer) -> Iterator[None]:
    """The model is busy with something else."""
    assert server.app.predictor is not None
    with server.app.predictor._turn:
        yield


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Answers --------------------------------------------------------------------------------------------


def test_answers_are_those_of_predict_in_order(server: ModelServer) -> None:
    texts = [f"{'yes' if n % 3 else 'no'} apple {'brick ' * (n % 7)}{n}" for n in range(150)]
    assert server.app.predictor is not None
    expected = [each.to_dict() for each in server.app.predictor.predict(texts)]
    found = ask(server, {"inputs": texts}).json()["predictions"]
    assert [each["label"] for each in found] == [each["label"] for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-4)


def test_one_text_and_none_are_answered(server: ModelServer) -> None:
    assert len(ask(server, {"inputs": "yes"}).json()["predictions"]) == 1
    assert ask(server, {"inputs": []}).json() == {"predictions": []}


def test_clients_at_the_same_time_share_batches_and_get_their_own_answers(server: ModelServer) -> None:
    assert server.app.batcher is not None
    assert server.app.predictor is not None
    texts = [f"apple {n} {'cloud ' * (n % 5)}" for n in range(16)]
    expected = [server.app.predictor.predict(text).probabilities["good"] for text in texts]
    batcher, before = server.app.batcher, server.app.batcher.batches
    with ThreadPoolExecutor(16) as pool:
        with held_up(server):
            answers = [pool.submit(ask, server, {"inputs": [text]}) for text in texts]
            until(lambda: batcher.waiting + batcher._together >= 16)  # in the queue, and in the batch that is held up
        found = [each.result().json()["predictions"][0]["probabilities"]["good"] for each in answers]
    assert found == pytest.approx(expected, abs=1e-4)
    assert server.app.batcher.batches - before <= 4


def test_lone_surrogates_and_other_alphabets_are_answered(server: ModelServer) -> None:
    sent = json.dumps({"inputs": ["\ud83d", "犬", "a\x00b", "🙂"]})
    answer = httpx.post(f"{server.url}predict", content=sent, headers={"content-type": "application/json"})
    assert len(answer.json()["predictions"]) == 4


def test_the_model_and_the_limits_are_described(server: ModelServer) -> None:
    found = httpx.get(f"{server.url}model").json()
    assert (found["labels"], found["pairs"], found["max_tokens"]) == (["bad", "good"], False, 32)
    document = httpx.get(f"{server.url}openapi.json").json()
    assert set(document["paths"]) == {"/predict", "/model", "/health", "/ready", "/metrics"}
    schema = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["inputs"]["oneOf"][1]["maxItems"] == LIMITS.rows


def test_health_readiness_and_metrics_are_told(server: ModelServer) -> None:
    assert httpx.get(f"{server.url}health").status_code == httpx.get(f"{server.url}ready").status_code == 200
    ask(server, {"inputs": ["yes"] * 5})
    text = httpx.get(f"{server.url}metrics").text
    assert re.search(r'^whet_requests_total\{path="/predict",status="200"\} [1-9]', text, re.MULTILINE)
    buckets = re.findall(r'^whet_batch_rows_bucket\{le="[^"]+"\} (\d+)$', text, re.MULTILINE)
    assert list(map(int, buckets)) == sorted(map(int, buckets))
    assert re.search(r"^whet_queue_rows 0$", text, re.MULTILINE)
    resident = re.search(r"^process_resident_memory_bytes (\d{8,})$", text, re.MULTILINE)
    assert resident is not None or sys.platform != "linux"


def test_a_count_of_millions_is_told_to_the_last_one() -> None:
    counters = Counters()
    counters.requests["/predict", 200] = 12_345_678
    assert 'status="200"} 12345678\n' in counters.text(None, ready=True)


# Refusals -------------------------------------------------------------------------------------------

LONG = f"{SECRET} " * 100


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 400, "line 1, column 1"),
        (b"{" + SECRET.encode(), 400, "not JSON"),
        (b"\xff\xfe", 400, "UTF-8"),
        (b"[" * 20_000, 400, "nested too deeply"),
        (b'{"inputs": NaN}', 400, "a number that JSON does not allow"),
        (b'{"inputs": ' + b"1" * 5000 + b"}", 400, "a number"),
        (b'["yes"]', 422, "Send an object"),
        (b"{}", 422, "'inputs' is missing"),
        (b'{"input": ["yes"]}', 422, "no field 'input'. Did you mean 'inputs'"),
        (b'{"inputs": {"a": 1}}', 422, "must be a list"),
        (b'{"inputs": ["yes", 5]}', 422, r"inputs\[1\] must be a text"),
        (b'{"inputs": [["yes", "no"]]}', 422, r"inputs\[0\] must be a text"),
        (b'{"inputs": ["yes", "  "]}', 422, r"inputs\[1\] has an empty text"),
        (b'{"inputs": ["yes"], "raw": 1}', 422, "true or false"),
        (b'{"inputs": ["yes"], "deadline_seconds": 0}', 422, "above 0 and at most 20"),
        (b'{"inputs": ["yes"], "deadline_seconds": true}', 422, "above 0"),
        (json.dumps({"inputs": [LONG]}).encode(), 422, r"inputs\[0\] is longer than 500"),
        (json.dumps({"inputs": ["a"] * 301}).encode(), 413, "301 rows, and 300 are allowed"),
        (json.dumps({"inputs": [LONG] * 90}).encode(), 413, "larger than 60,000 bytes"),
    ],
)
def test_a_bad_body_is_refused_as_a_problem(server: ModelServer, content: bytes, status: int, said: str) -> None:
    answer = httpx.post(f"{server.url}predict", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    assert re.search(said, answer.json()["detail"])
    assert SECRET not in answer.text
    assert "/" not in answer.json()["detail"].replace("application/json", "")


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "predict", {"content-type": "text/plain"}, 415),
        ("POST", "predict", {"content-type": "application/json", "content-encoding": "gzip"}, 415),
        ("GET", "predict", {}, 405),
        ("DELETE", "metrics", {}, 405),
        ("GET", "assets/../server.py", {}, 404),
        ("GET", "no-such", {}, 404),
        ("GET", "", {"host": "evil.example"}, 400),
        ("GET", "", {"host": "127.0.0.1:1"}, 400),
        ("GET", "model", {"origin": "https://evil.example"}, 403),
        ("GET", "health", {"host": "10.1.2.3"}, 200),
        ("HEAD", "health", {}, 200),
    ],
)
def test_a_strange_request_is_refused(
    server: ModelServer, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = httpx.request(method, server.url + path, headers=headers, content=b"{}" if method == "POST" else None)
    assert answer.status_code == status
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "access-control-allow-origin" not in answer.headers
    assert (status == 405) == ("allow" in answer.headers)


def test_two_hosts_are_refused(server: ModelServer) -> None:
    assert raw(server, head(server, f"Host: 127.0.0.1:{server.port}", "Content-Length: 2") + b"{}")[9:12] == b"400"


def test_a_body_without_a_length_is_refused_while_it_streams(server: ModelServer) -> None:
    chunk = b"fff\r\n" + b" " * 0xFFF + b"\r\n"
    answer = raw(server, head(server, "Transfer-Encoding: chunked") + chunk * 40)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_length_that_is_too_large_is_refused_before_the_body_comes(server: ModelServer) -> None:
    assert raw(server, head(server, "Content-Length: 99999999999")).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("length", ["-5", "five", "5, 6"])
def test_a_lying_length_is_refused(server: ModelServer, length: str) -> None:
    assert raw(server, head(server, f"Content-Length: {length}") + b"{}").startswith(b"HTTP/1.1 400 ")


def test_a_body_that_trickles_is_refused(server: ModelServer) -> None:
    assert raw(server, head(server, "Content-Length: 500") + b"{").startswith(b"HTTP/1.1 408 ")


def test_a_head_that_trickles_is_refused(server: ModelServer) -> None:
    assert raw(server, head(server), pause=0.02).startswith(b"HTTP/1.1 408 ")
    assert raw(server, b"").startswith(b"HTTP/1.1 408 ")


def test_more_than_may_wait_is_told_to_come_again(server: ModelServer) -> None:
    with ThreadPoolExecutor(2) as pool, held_up(server):
        until(lambda: server.app.batcher is not None and server.app.batcher.waiting == 0)
        taken = pool.submit(ask, server, {"inputs": ["apple"] * 300})
        until(lambda: server.app._held.now > 0)
        until(lambda: server.app.batcher is not None and not server.app.batcher._queue)
        waits = pool.submit(ask, server, {"inputs": ["brick"] * 300})
        until(lambda: server.app.batcher is not None and server.app.batcher.waiting == 300)
        refused = ask(server, {"inputs": ["cloud"] * 101})
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert [each.result().status_code for each in (taken, waits)] == [200, 200]
    assert ask(server, {"inputs": ["cloud"] * 101}).status_code == 200


def test_a_deadline_that_comes_first_is_told(server: ModelServer) -> None:
    with held_up(server):
        answer = ask(server, {"inputs": [f"{SECRET} yes"], "deadline_seconds": 0.05})
    assert answer.status_code == 504
    assert ask(server, {"inputs": ["yes"]}).status_code == 200


def test_large_bodies_together_are_bounded(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.app._held, "most", 10_000)
    answer = ask(server, {"inputs": ["a" * 400] * 40})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert ask(server, {"inputs": ["a" * 400] * 10}).status_code == 200


def test_clients_that_leave_or_send_garbage_leave_nothing_behind(
    server: ModelServer, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = head(server, "Content-Length: 40") + json.dumps({"inputs": [SECRET]}).encode().ljust(40)
    sent = [b"\x16\x03\x01\x02", b"GET\r\n\r\n", b"\x00" * 300, b"A" * 70_000, whole[:60], whole[:-10], whole]
    for part in sent * 3:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(part)
    until(lambda: server.app.counters.open == 0)
    until(lambda: server.app.batcher is not None and server.app.batcher.waiting == 0)
    assert server.app._held.now == 0
    assert ask(server, {"inputs": ["yes"]}).status_code == 200
    out, err = capfd.readouterr()
    assert SECRET not in out + err


def test_rows_of_a_client_that_left_are_not_computed(server: ModelServer) -> None:
    assert server.app.batcher is not None
    batcher = server.app.batcher
    body = json.dumps({"inputs": ["apple"] * 50}).encode()
    until(lambda: server.app.counters.open == 0)
    before = batcher.rows
    with ThreadPoolExecutor(1) as pool, held_up(server):
        taken = pool.submit(ask, server, {"inputs": ["brick"]})
        until(lambda: server.app.counters.open == 1 and batcher.waiting == 0)
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head(server, f"Content-Length: {len(body)}") + body)
            until(lambda: batcher.waiting == 50)
        until(lambda: server.app.counters.open == 1)
    assert taken.result().status_code == 200
    assert ask(server, {"inputs": ["cloud"]}).status_code == 200  # behind them in the queue
    assert batcher.rows == before + 2


def test_a_fault_of_ours_tells_neither_text_nor_path(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(batch: Any) -> Any:
        raise ValueError(f"{SECRET} in {__file__}")

    assert server.app.predictor is not None
    monkeypatch.setattr(server.app.predictor.network, "logits", fail)
    answer = ask(server, {"inputs": [SECRET]})
    assert (answer.status_code, answer.json()["detail"]) == (500, "The server failed.")
    err = capfd.readouterr().err
    assert "ValueError at test_server.py" in err
    assert SECRET not in err


# Who may ask ----------------------------------------------------------------------------------------


def test_a_network_is_not_listened_to_without_a_token(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--token-file"):
        serve(run, Settings(host="0.0.0.0", port=0))
    (tmp_path / "token").write_text("short\n")
    with pytest.raises(UsageError, match="at least 16"):
        serve(run, Settings(host="0.0.0.0", port=0, token_file=tmp_path / "token"))
    with pytest.raises(UsageError, match="cannot be read"):
        serve(run, Settings(port=0, token_file=tmp_path / "no-such"))


def test_a_token_is_asked_for(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAVING_SECONDS", 0.0)
    (tmp_path / "token").write_text("0123456789abcdef0123\n")
    server = serve(run, Settings(port=0, token_file=tmp_path / "token", limits=LIMITS, device="cpu"))
    try:
        assert ask(server, {"inputs": ["yes"]}).status_code == 401
        assert ask(server, {"inputs": ["yes"]}, Authorization="Bearer 0123456789abcdef0124").status_code == 401
        assert ask(server, {"inputs": ["yes"]}, Authorization="Bearer 0123456789abcdef0123").status_code == 200
        for path, status in (("", 200), ("ready", 200), ("openapi.json", 200), ("model", 401), ("metrics", 401)):
            assert httpx.get(server.url + path).status_code == status
        assert "good" not in httpx.get(f"{server.url}openapi.json").text
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("settings", "host", "known"),
    [
        (Settings(), "localhost:80", True),
        (Settings(), "evil.example", False),
        (Settings(allow_hosts=("Models.example",)), "models.example", True),
        (Settings(allow_hosts=("models.example",)), "models.example:8080", True),
        (Settings(host="10.0.0.5"), "10.0.0.5:9999", True),
        (Settings(host="10.0.0.5"), "10.0.0.6", False),
    ],
)
def test_names_that_are_answered(settings: Settings, host: str, known: bool) -> None:
    guard = module._with_port(module.RequestGuard(frozenset(), b"x" * 20), settings, 80)
    assert guard._knows(host.encode()) is known


# Start and end --------------------------------------------------------------------------------------


def test_a_port_in_use_and_a_missing_run_are_said(server: ModelServer, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="Cannot listen"):
        serve(tmp_path, Settings(port=server.port))
    with pytest.raises(ArtifactError):
        serve(tmp_path, Settings(port=0))


def test_nothing_accepted_is_dropped_when_it_is_stopped(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accepted: list[str] = []

    async def counted(app: App, scope: Any, receive: Any, send: Any) -> None:
        accepted.append(scope["path"])
        await answer(app, scope, receive, send)

    def slowly(predictor: Predictor, *given: Any, **others: Any) -> Any:
        time.sleep(0.4)  # uvicorn itself waits for a tenth of a second
        return compute(predictor, *given, **others)

    answer, compute = App.__call__, Predictor.logits
    monkeypatch.setattr(App, "__call__", counted)
    monkeypatch.setattr(Predictor, "logits", slowly)
    server = serve(run, Settings(port=0, limits=LIMITS, device="cpu"))
    answered: list[int] = []
    broken: list[Exception] = []

    def client() -> None:
        with httpx.Client(timeout=60) as http:
            while True:
                try:
                    answered.append(http.post(f"{server.url}predict", json={"inputs": ["apple"] * 20}).status_code)
                except httpx.ConnectError:
                    return  # the door is closed
                except (httpx.ReadError, httpx.RemoteProtocolError):
                    return  # connected while the door was closing: the system had queued it, the server never read it
                except Exception as error:
                    broken.append(error)
                    return

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(answered) > 16)
    server.stop()
    for thread in threads:
        thread.join(30)
    assert broken == []
    assert set(answered) == {200}
    assert len(accepted) == len(answered)


def test_sigterm_ends_the_command_with_0(warm: Any, run: Path, tmp_path: Path) -> None:
    command = warm.start(["serve", str(run), "--port", "0", "--device", "cpu", *FLAGS], tmp_path)
    until_said = time.monotonic() + 120
    while not (
        found := re.search(r"http://127\.0\.0\.1:\d+/", command.output.read_text() if command.output.exists() else "")
    ):
        assert time.monotonic() < until_said
        time.sleep(0.05)
    assert httpx.get(f"{found[0]}ready").status_code == 200
    command.signal(signal.SIGTERM)
    assert command.wait(60) == 0
