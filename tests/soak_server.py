"""A server that gets sound, broken and cut-off requests at random: it answers, refuses, and goes on."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from whet.tools.selftest.fork_client import ForkServer
from whet.tools.selftest.tiny_run import WORDS
from whet.tools.selftest.trials import Tally

TEXTS = tuple(f"{first} {word}" for first in ("yes", "no") for word in WORDS)
START_SECONDS = 120
CLIENTS = 4
TENTHS = 10
MOST_GROWTH = 1.05
"""Of the memory after the first tenth of the requests."""
WARM_REQUESTS = 500
"""So many have shown a server most sizes of batches: until then its memory grows."""
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    1e308,
    "",
    "x" * 5000,
    [],
    {},
    [[]],
    {"inputs": {}},
    "\ud800",
    [None],
    "\x1b[2J",
)
HEADS = (
    "GET /predict HTTP/1.1",
    "POST /../predict HTTP/1.1",
    "DELETE / HTTP/1.1",
    "\x00\x01\x02",
    "POST /predict",
    "PRI * HTTP/2.0",
)


class Server:
    """`whet serve` in a fork, on a port that the system chooses."""

    def __init__(self, warm: ForkServer, run: Path, folder: Path) -> None:
        self.command = warm.start(["serve", str(run), "--port", "0", "--device", "cpu"], folder)
        until = time.monotonic() + START_SECONDS
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/", self.said())):
            if time.monotonic() > until:
                raise TimeoutError(f"The server did not start: {self.said()[-400:]}")
            time.sleep(0.05)
        self.port = int(found[1])

    def said(self) -> str:
        return self.command.output.read_text(errors="replace") if self.command.output.exists() else ""

    def send(self, sent: bytes, *, leave: bool = False) -> tuple[int, bytes]:
        """Its status and body; status 0 where it closed without an answer, or nobody waited for one."""
        found = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            try:
                connection.sendall(sent)
                if leave:
                    return 0, b""
                while part := connection.recv(65536):
                    found += part
            except OSError:
                pass  # it has closed already
        status, _, body = found.partition(b"\r\n\r\n")
        return int(status[9:12] or 0), body

    def resident_mb(self) -> int:
        """What the server says of its memory."""
        _, body = self.send(self.request(b"", "GET /metrics HTTP/1.1"))
        found = re.search(rb"process_resident_memory_bytes (\d+)", body)
        return round(int(found[1]) / 1e6) if found else 0

    def request(
        self, body: bytes, head: str = "POST /predict HTTP/1.1", length: int | None = None, **more: str
    ) -> bytes:
        lines = {"Host": f"127.0.0.1:{self.port}", "Content-Type": "application/json", "Connection": "close", **more}
        lines["Content-Length"] = str(len(body) if length is None else length)
        return "\r\n".join([head, *(f"{name}: {value}" for name, value in lines.items()), "", ""]).encode() + body


def examine_server(warm: ForkServer, run: Path, folder: Path, requests: int, seed: int) -> Tally:
    """`exact`: answered as it must be. `different`: a wrong answer. `wrong exit`: a 5xx, or a fault in what it said."""
    tally, server = Tally("requests to `whet serve`, sound and broken"), Server(warm, run, folder)
    expected = {text: _ask(server, [text])[0] for text in TEXTS}

    clients = [random.Random(f"{seed} {number}") for number in range(CLIENTS)]
    outcomes, resident = [], []
    for _ in range(TENTHS):

        def client(chosen: random.Random) -> list[str]:
            return [_try_one(server, chosen, expected) for _ in range(max(1, requests // CLIENTS // TENTHS))]

        with ThreadPoolExecutor(CLIENTS) as pool:
            outcomes += [outcome for found in pool.map(client, clients) for outcome in found]
        resident.append(server.resident_mb())
    flat = requests < WARM_REQUESTS * TENTHS or max(resident[1:]) <= MOST_GROWTH * resident[0]
    outcomes.append("" if flat else f"memory after each tenth, in MB: {resident}")
    outcomes.append(
        "" if _ask(server, list(TEXTS)) == [expected[text] for text in TEXTS] else "other answers at the end"
    )
    server.command.signal(signal.SIGTERM)
    if (status := server.command.wait(60)) != 0 or "Traceback" in server.said():
        outcomes.append(f"exit {status}: {server.said()[-300:]}")
    tally.trials, tally.exact = len(outcomes), outcomes.count("")
    tally.different = len(outcomes) - tally.exact
    tally.troubles = [outcome for outcome in outcomes if outcome][:20]
    return tally


def _ask(server: Server, texts: list[str]) -> list[Any]:
    status, body = server.send(server.request(json.dumps({"inputs": texts}).encode()))
    if status != 200:
        return [status]
    return [(each["label"], round(max(each["probabilities"].values()), 3)) for each in json.loads(body)["predictions"]]


def _try_one(server: Server, chosen: random.Random, expected: dict[str, Any]) -> str:
    """What is wrong with the answer to one request; nothing, if nothing is."""
    texts = chosen.choices(TEXTS, k=chosen.randint(1, 12))
    sound = json.dumps({"inputs": texts}).encode()
    match chosen.randrange(7):
        case 0 | 1:
            found = _ask(server, texts)
            return "" if _near(found, [expected[text] for text in texts]) else f"{texts}: {found}"
        case 2:  # a byte that is another one, or gone, or new
            place, kept = chosen.randrange(len(sound)), chosen.choice((0, 1))
            broken = sound[:place] + chosen.randbytes(chosen.randint(0, 2)) + sound[place + kept :]
            return _refused(server.send(server.request(broken)), broken, or_answered=True)
        case 3:
            body = json.dumps({chosen.choice(("inputs", "input", "raw")): chosen.choice(VALUES)}).encode()
            return _refused(server.send(server.request(body)), body, or_answered=True)
        case 4:
            body = (
                b"[" * chosen.randrange(100_000) if chosen.random() < 0.5 else chosen.randbytes(chosen.randrange(5000))
            )
            return _refused(server.send(server.request(body)), body[:50])
        case 5:
            strange = [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Content-Encoding": "gzip"}]
            sent = (
                server.request(sound, chosen.choice(HEADS))
                if chosen.random() < 0.5
                else server.request(sound, **chosen.choice(strange))
            )
            return _refused(server.send(sent), sent[:80])
        case _:  # cut off, or longer than it says
            whole = server.request(sound, length=len(sound) + chosen.choice((-5, 0, 50)))
            server.send(whole[: chosen.randint(1, len(whole))], leave=True)
            return ""


def _near(found: list[Any], expected: list[Any]) -> bool:
    """Batches of other sizes may round the last digit otherwise."""
    if len(found) != len(expected) or any(not isinstance(each, tuple) for each in found):
        return False
    return all(one[0] == two[0] and abs(one[1] - two[1]) < 0.003 for one, two in zip(found, expected, strict=True))


def _refused(answer: tuple[int, bytes], sent: bytes, *, or_answered: bool = False) -> str:
    status = answer[0]
    fine = 400 <= status < 500 or status == 0 or (or_answered and status == 200)
    return "" if fine else f"{status} to {sent[:80]!r}"
