"""`whet serve` beside the plainest server that people write: starlette around `transformers.pipeline`.

    python benchmarks/serve.py runs/reviews-001                     # requests a second, and latencies at 80% load
    python benchmarks/serve.py runs/reviews-001 --rough 10000       # clients that leave, send garbage or trickle

Both servers get the same short texts from the same clients, by turns, each in a process of its own. The load of the
second table is 80% of what the plain server can answer. Nothing listens but on 127.0.0.1. The figures are kept in
`benchmarks/results/serve.json` and `benchmarks/results/serve-rough.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from results import write_results

PACKAGES = ("torch", "transformers", "starlette", "uvicorn", "tokenizers")
WORDS = [
    "the",
    "of",
    "a",
    "film",
    "story",
    "actor",
    "music",
    "plot",
    "long",
    "short",
    "good",
    "bad",
    "quite",
    "never",
    "always",
    "scene",
    "end",
    "begins",
    "hardly",
]


def texts(count: int) -> list[str]:
    chosen = random.Random(0)
    return [" ".join(chosen.choices(WORDS, k=chosen.randint(5, 15))) for _ in range(count)]


TEXTS = texts(500)


# Servers --------------------------------------------------------------------------------------------


def plain_server(model: str, port: int) -> None:
    """As short as it gets: one request, one call of the pipeline, on a thread so that others are accepted."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    from transformers import pipeline

    answer = pipeline("text-classification", model=model, device="cpu", top_k=None, truncation=True)

    async def predict(request: Request) -> JSONResponse:
        inputs = (await request.json())["inputs"]
        given = [{"text": each[0], "text_pair": each[1]} if isinstance(each, list) else each for each in inputs]
        return JSONResponse(await asyncio.to_thread(answer, given))

    async def ready(request: Request) -> JSONResponse:
        return JSONResponse({})

    app = Starlette(routes=[Route("/predict", predict, methods=["POST"]), Route("/ready", ready)])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", access_log=False)


@contextmanager
def served(kind: str, run: str, port: int) -> Any:
    command = {
        "whet": [sys.executable, "-m", "whet", "serve", run, "--port", str(port), "--device", "cpu"],
        "plain": [sys.executable, __file__, str(Path(run) / "model"), "--plain", str(port)],
    }[kind]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        asyncio.run(wait_until_ready(port, process))
        yield process
    finally:
        process.terminate()
        process.wait(60)


async def wait_until_ready(port: int, process: Any) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            raise SystemExit("The server ended before it was ready.")
        try:
            if (await Client(port).get("/ready"))[0] == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("The server was not ready in two minutes.")


# Clients --------------------------------------------------------------------------------------------


class Client:
    """One connection that is kept, with as little work for each request as can be."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: Any = None

    async def post(self, content: Any) -> tuple[int, bytes]:
        body = json.dumps(content).encode()
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: application/json\r\n"
        return await self._ask(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self._ask(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode())

    async def _ask(self, sent: bytes) -> tuple[int, bytes]:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head.lower())
        body = await reader.readexactly(int(found[1]) if found else 0)
        if b"connection: close" in head.lower():
            self.close()
        return int(head[9:12]), body

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def row(number: int, pairs: bool) -> Any:
    text = TEXTS[number % len(TEXTS)]
    return [text, TEXTS[(number + 7) % len(TEXTS)]] if pairs else text


async def closed_loop(port: int, clients: int, seconds: float, pairs: bool) -> float:
    """Requests a second, each client asking again as soon as it is answered."""
    until, done = time.perf_counter() + seconds, 0

    async def one(number: int) -> None:
        nonlocal done
        client = Client(port)
        while time.perf_counter() < until:
            status, _ = await client.post({"inputs": [row(number + done, pairs)]})
            assert status == 200, status
            done += 1
        client.close()

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(clients)))
    return done / (time.perf_counter() - began)


async def open_loop(port: int, rate: float, seconds: float, pairs: bool) -> list[float]:
    """Milliseconds of requests that come at random moments, whether the ones before are answered or not."""
    chosen, found, idle = random.Random(1), [], [Client(port) for _ in range(64)]

    async def one(number: int) -> None:
        client = idle.pop() if idle else Client(port)
        began = time.perf_counter()
        status, _ = await client.post({"inputs": [row(number, pairs)]})
        assert status == 200, status
        found.append(1000 * (time.perf_counter() - began))
        idle.append(client)

    tasks, at, number = [], time.perf_counter(), 0
    until = at + seconds
    while at < until:
        at += chosen.expovariate(rate)
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        tasks.append(asyncio.create_task(one(number)))
        number += 1
    await asyncio.gather(*tasks)
    return sorted(found)


def at_share(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


# Measurements ---------------------------------------------------------------------------------------


def compare(run: str, options: argparse.Namespace) -> None:
    from whet.api import load

    pairs = bool(load(run, device="cpu").pairs)
    rates: dict[str, list[float]] = {"plain": [], "whet": []}
    latencies: dict[str, list[float]] = {"plain": [], "whet": []}
    with served("plain", run, options.port), served("whet", run, options.port + 1):
        ports = {"plain": options.port, "whet": options.port + 1}
        for turn in range(options.turns + 1):
            for kind, port in ports.items():
                found = asyncio.run(closed_loop(port, options.clients, options.seconds, pairs))
                if turn:  # the first warms up
                    rates[kind].append(found)
        load_rate = 0.8 * statistics.median(rates["plain"])
        for _ in range(options.turns):
            for kind, port in ports.items():
                latencies[kind] += asyncio.run(open_loop(port, load_rate, options.seconds, pairs))
    print(f"| {options.clients} clients, short texts | requests per second | p50 and p99 at {load_rate:.0f} a second |")
    print("|---|---|---|")
    for kind in rates:
        spread = f"{min(rates[kind]):.0f} to {max(rates[kind]):.0f}"
        waits = sorted(latencies[kind])
        print(
            f"| {kind} | {spread} | {at_share(waits, 0.5):.1f} and {at_share(waits, 0.99):.1f} ms, n = {len(waits)} |"
        )
    ratio = statistics.median(rates["whet"]) / statistics.median(rates["plain"])
    print(f"ratio of the medians: {ratio:.2f}")
    servers = {kind: summary(rates[kind], sorted(latencies[kind])) for kind in rates}
    about = {"run": Path(run).name, "clients": options.clients, "seconds_a_turn": options.seconds, "pairs": pairs}
    print(write_results("serve", PACKAGES, **about, load_per_second=round(load_rate, 1), ratio=ratio, servers=servers))


def summary(rates: list[float], waits: list[float]) -> dict[str, Any]:
    """Requests per second of every turn; milliseconds at the load."""
    return {
        "requests_per_second": [round(rate, 1) for rate in rates],
        "p50_ms": round(at_share(waits, 0.5), 2),
        "p99_ms": round(at_share(waits, 0.99), 2),
        "requests_at_load": len(waits),
    }


async def rough_request(port: int, number: int, expected: list[str], pairs: bool) -> str:
    """One request as a client of some kind sends it; `right`, `refused`, `left`, or what is wrong."""
    kind = number % 5
    body = json.dumps({"inputs": [row(number, pairs)]}).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n" % port
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        if kind == 0:  # leaves before it is answered
            writer.write(whole[: random.Random(number).randint(1, len(whole))])
            return "left"
        if kind == 1:
            writer.write(random.Random(number).randbytes(random.Random(number).randint(1, 3000)) + b"\r\n\r\n")
            head = await reader.read(100)
            return "refused" if head.startswith(b"HTTP/1.1 4") or not head else f"wrong: {head[:30]!r}"
        if kind == 2:  # trickles, but arrives in time
            for start in range(0, len(whole), 40):
                writer.write(whole[start : start + 40])
                await asyncio.sleep(0.01)
        else:
            writer.write(whole)
        found = re.search(rb"content-length: (\d+)", (head := await reader.readuntil(b"\r\n\r\n")).lower())
        content = json.loads(await reader.readexactly(int(found[1]) if found else 0))
        if head[9:12] == b"503":
            return "refused"
        return "right" if content["predictions"][0]["label"] == expected[number % len(expected)] else "wrong: label"
    except (OSError, asyncio.IncompleteReadError) as error:
        return "refused" if kind == 1 else f"lost: {type(error).__name__}"
    finally:
        writer.close()


def rough(run: str, options: argparse.Namespace) -> None:
    from whet.api import load

    model = load(run, device="cpu")
    pairs = bool(model.pairs)
    rows = [row(number, pairs) for number in range(len(TEXTS))]
    expected = [each.label for each in model.predict([tuple(each) if pairs else each for each in rows])]
    with served("whet", run, options.port) as process:

        async def all_of_them(count: int) -> dict[str, int]:
            counts: dict[str, int] = {}
            slots = asyncio.Semaphore(options.clients)

            async def one(number: int) -> None:
                async with slots:
                    end = await rough_request(options.port, number, expected, pairs)
                counts[end] = counts.get(end, 0) + 1

            await asyncio.gather(*(one(number) for number in range(count)))
            return counts

        counts: dict[str, int] = {}
        memory = []
        for _ in range(10):
            for end, count in asyncio.run(all_of_them(options.rough // 10)).items():
                counts[end] = counts.get(end, 0) + count
            memory.append(round(resident_mb(process.pid)))
    print(counts)
    print(f"memory after each tenth, in MB: {', '.join(map(str, memory))}")
    print(
        write_results("serve-rough", PACKAGES, run=Path(run).name, requests=options.rough, ends=counts, memory=memory)
    )


def resident_mb(process: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--port", type=int, default=8901)
    parser.add_argument("--rough", type=int, default=0, metavar="N", help="send N requests of all kinds instead")
    parser.add_argument("--plain", type=int, default=0, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        plain_server(options.run, options.plain)
    elif options.rough:
        rough(options.run, options)
    else:
        compare(options.run, options)


if __name__ == "__main__":
    main()
