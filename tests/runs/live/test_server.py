from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.run_folders import build_run, step_record
from whet.errors import EnvironmentFault, UsageError
from whet.runs.folder import RunFolder
from whet.runs.live.server import Server, start


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    build_run(root / "first-001", finished=False)
    build_run(root / "second-001", task="regression")
    (root / "notes").mkdir()
    (root / "secret.txt").write_text("secret")
    (root / "linked").symlink_to(root / "first-001")
    return root


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[Server]:
    found = start(runs)
    yield found
    found.stop()


def raw_request(server: Server, head: str) -> bytes:
    """Exactly these bytes: clients tidy paths up before they send them."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode())
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_the_runs_of_a_folder_are_listed_without_links(server: Server) -> None:
    found = httpx.get(f"{server.url}api/runs").json()
    assert {run["name"] for run in found["runs"]} == {"first-001", "second-001"}
    assert not found["single"]


def test_a_run_tells_its_charts_progress_and_settings(server: Server) -> None:
    found = httpx.get(f"{server.url}api/runs/first-001").json()
    assert {"loss", "scores", "learning_rate"} <= {chart["id"] for chart in found["charts"]}
    assert found["progress"]["step"] == 160
    assert ["source", "reviews.csv", True] in found["settings"]


def test_events_start_with_all_and_go_on_with_what_is_new(server: Server, runs: Path) -> None:
    with httpx.stream("GET", f"{server.url}api/runs/first-001/events", timeout=10) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: snapshot"
        while next(lines):
            pass
        RunFolder.open(runs / "first-001").append(step_record(161))
        assert next(lines) == "event: records"
        assert '"train_loss":[[161]' in next(lines)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example:{port}", ""])
def test_a_strange_host_is_refused(server: Server, host: str) -> None:
    answer = httpx.get(server.url, headers={"Host": host.format(port=server.port)})
    assert answer.status_code == 400


def test_two_hosts_are_refused(server: Server) -> None:
    good = f"127.0.0.1:{server.port}"
    answer = raw_request(server, f"GET / HTTP/1.1\nHost: {good}\nHost: {good}\nConnection: close\n\n")
    assert answer.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("name", ["localhost", "[::1]"])
def test_its_own_names_are_answered(server: Server, name: str) -> None:
    assert httpx.get(server.url, headers={"Host": f"{name}:{server.port}"}).status_code == 200


def test_another_origin_is_refused(server: Server) -> None:
    assert httpx.get(f"{server.url}api/runs", headers={"Origin": "https://evil.example"}).status_code == 400
    assert httpx.get(f"{server.url}api/runs", headers={"Origin": server.url.rstrip("/")}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/assets/../secret.txt",
        "/assets/%2e%2e%2fsecret.txt",
        "/assets/..%5csecret.txt",
        "/api/runs/..",
        "/api/runs/%2e%2e%2f",
        "/api/runs/notes",
        "/api/runs/linked",
        "/api/runs/first-001%00",
        "/api/runs/first-001%2frecords.jsonl/events",
        "//etc/passwd",
        "/assets/live.js/",
    ],
)
def test_a_path_leads_nowhere_else(server: Server, path: str) -> None:
    answer = raw_request(server, f"GET {path} HTTP/1.1\nHost: 127.0.0.1:{server.port}\nConnection: close\n\n")
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"secret" not in answer


@pytest.mark.parametrize("path", ["", "assets/live.js", "api/runs", "api/runs/no-such"])
def test_every_answer_keeps_the_page_to_itself(server: Server, path: str) -> None:
    headers = httpx.get(server.url + path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_nothing_can_be_written(server: Server) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert httpx.request(method, f"{server.url}api/runs").status_code == 405


@pytest.mark.parametrize(
    "query", ["", "low=0&high=x&smoothing=0", "low=nan&high=1&smoothing=0", "low=0&high=9&smoothing=1"]
)
def test_numbers_that_are_none_are_refused(server: Server, query: str) -> None:
    assert httpx.get(f"{server.url}api/runs/first-001/series?{query}").status_code == 400


def test_one_run_can_be_served_alone_and_stops(tmp_path: Path) -> None:
    folder = build_run(tmp_path / "only", finished=False)
    server = start(folder.path)
    assert httpx.get(f"{server.url}api/runs").json()["single"]
    assert f"-L {server.port}:127.0.0.1:{server.port}" in server.ssh_line
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_stopping_does_not_wait_for_watchers(server: Server, tmp_path: Path) -> None:
    folder = build_run(tmp_path / "only", finished=False)
    own = start(folder.path)
    with httpx.stream("GET", f"{own.url}api/runs/only/events", timeout=10) as answer:
        next(answer.iter_lines())
        own.stop()
        with pytest.raises(httpx.ConnectError):
            httpx.get(own.url)


def test_what_cannot_be_served_is_said(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such"):
        start(tmp_path / "no-such")
    with pytest.raises(EnvironmentFault, match=str(server.port)):
        start(tmp_path, server.port)
