"""The live page: a small server on this machine that shows runs while they train.

    server = start("runs")        # a run, or a folder of runs; returns at once
    print(server.url)
    server.stop()

It listens on 127.0.0.1 and nowhere else, answers only to its own name (so that no other site can reach it
through a name that points here), sends a policy under which the page can load nothing from elsewhere, and
serves runs by looking their names up in a list: there is no path in a request that could lead outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import UsageError, missing_extra
from whet.runs.folder import RECORDS, is_run
from whet.runs.live.follow import Cursor, Tail, as_json, clean_dict
from whet.runs.many import default_values, run_in_short
from whet.runs.served_page import page_files
from whet.utils.text import neutral_lines
from whet.utils.web_server import HEADERS, LOOPBACK, Server, listen, run_in_background

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

POLL_SECONDS = 0.05
HEARTBEAT_SECONDS = 15.0
CONNECTIONS = 100
READING_SECONDS = 0.2
"""Time limit for reading new runs while listing them."""
FIRST_SECONDS = 0.03
"""The same for a page that has nothing to show yet: it shows the names first."""

Send = Callable[[Any], Awaitable[None]]


class Library:
    """The visible runs by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tails: dict[Path, Tail] = {}
        self._read: dict[Path, _Read] = {}
        self._revision = 0
        self._turn = threading.Lock()

    def runs(self) -> dict[str, Path]:
        """Return runs by name, newest first. Links are not followed, because they could lead anywhere."""
        if is_run(self.root):
            return {neutral_lines(self.root.resolve().name): self.root}
        try:
            found = [path for path in self.root.iterdir() if not path.is_symlink() and is_run(path)]
        except OSError:
            return {}
        return {
            neutral_lines(path.name): path for path in sorted(found, key=lambda path: _stamp(path)[1], reverse=True)
        }

    def tail(self, name: str) -> Tail | None:
        path = self.runs().get(name)
        if path is None:
            return None
        return self._tails.setdefault(path, Tail(path))

    def lines(self, since: int = 0, seconds: float = READING_SECONDS) -> dict[str, Any]:
        """Return summaries of the runs read after this revision; a run is read again only if it has changed.

        Reading stops at a time limit: a page shows what it has, and requests again while there is `more`.
        """
        with self._turn:
            paths, until, more = self.runs(), time.monotonic() + seconds, False
            for path in self._read.keys() - set(paths.values()):
                del self._read[path]
            for path in paths.values():
                stamp = _stamp(path)
                if path in self._read and self._read[path].stamp == stamp:
                    continue
                if more := time.monotonic() > until:
                    break
                self._revision += 1
                self._read[path] = _Read(stamp, self._revision, clean_dict(run_in_short(path)))
            read = [self._read[path] for path in paths.values() if path in self._read]
            new = [each.content for each in read if each.revision > since]
            return {"runs": new, "names": list(paths), "revision": self._revision, "more": more}


@dataclass(frozen=True)
class _Read:
    """The summary of a run, with the stamp of its records."""

    stamp: tuple[int, int]
    revision: int
    content: dict[str, Any]


def start(path: Path | str, port: int = 0) -> Server:
    """Serve the page of a run or of a folder of runs from another thread; port 0 takes a free one."""
    root = Path(path)
    if not root.is_dir():
        raise UsageError(f"There is no folder {str(path)!r}.", "Give a run, or a folder of runs such as runs.")
    leaving = threading.Event()
    return run_in_background(
        lambda port: make_app(Library(root), port, leaving),
        listen(port),
        name="whet-live-page",
        purpose="The live page",
        leaving=leaving.set,
        grace_seconds=2,
        limit_concurrency=CONNECTIONS,
    )


def make_app(library: Library, port: int, leaving: threading.Event) -> Any:
    """Return the application: pages and data behind the check of requests."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise missing_extra("starlette", "serve", "The live page") from None
    pages = _Pages(library, leaving)
    routes = [
        Route("/", pages.index),
        Route("/assets/{name}", pages.asset),
        Route("/api/runs", pages.runs),
        Route("/api/runs/{name}", pages.run),
        Route("/api/runs/{name}/series", pages.series),
        Route("/api/runs/{name}/events", pages.events),
    ]
    app: Starlette = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return guarded(app, port)


def guarded(app: Any, port: int) -> Any:
    """Refuse unknown Host headers and other origins, and add the security headers."""
    hosts = {f"{name}:{port}".encode() for name in (LOOPBACK, "localhost", "[::1]")}
    origins = {b"http://" + host for host in hosts}

    async def answer(scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = scope["headers"]
        named = [value for name, value in headers if name == b"host"]
        origin = [value for name, value in headers if name == b"origin"]
        if len(named) != 1 or named[0].lower() not in hosts or any(each.lower() not in origins for each in origin):
            await _refuse(send, f"Open this page as http://{LOOPBACK}:{port}/\n".encode())
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await app(scope, receive, send_guarded)

    return answer


class _Pages:
    """One method per route."""

    def __init__(self, library: Library, leaving: threading.Event) -> None:
        self.library, self.leaving = library, leaving
        self.files = page_files("whet.runs.live", "live", scripts=("scales.js", "chart.js", "many.js"))

    async def index(self, request: Request) -> Response:
        return self._file("index.html")

    async def asset(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    async def runs(self, request: Request) -> Response:
        since = _number(request.query_params.get("since", "0"))
        if since is None:
            return _text("since is the revision of an earlier answer\n", 400)
        seconds = READING_SECONDS if since else FIRST_SECONDS
        found = await asyncio.to_thread(self.library.lines, int(since), seconds)
        return _json({**found, "defaults": default_values(), "single": is_run(self.library.root)})

    async def run(self, request: Request) -> Response:
        tail = self.library.tail(request.path_params["name"])
        if tail is None:
            return _missing()
        await asyncio.to_thread(tail.poll)
        return _json(await asyncio.to_thread(tail.snapshot))

    async def series(self, request: Request) -> Response:
        tail = self.library.tail(request.path_params["name"])
        if tail is None:
            return _missing()
        wanted = [_number(request.query_params.get(name)) for name in ("low", "high", "smoothing")]
        low, high, smoothing = wanted
        if low is None or high is None or smoothing is None or not 0 <= smoothing < 1 or low > high:
            return _text("low, high and smoothing are numbers, smoothing from 0 to below 1\n", 400)
        return _json(await asyncio.to_thread(tail.part, low, high, smoothing))

    async def events(self, request: Request) -> Response:
        from starlette.responses import StreamingResponse

        tail = self.library.tail(request.path_params["name"])
        if tail is None:
            return _missing()
        return StreamingResponse(self._follow(tail), media_type="text/event-stream")

    async def _follow(self, tail: Tail) -> AsyncIterator[str]:
        """Send a snapshot, then new records as they are written."""
        cursor, quiet_since = Cursor(), time.monotonic()
        while not self.leaving.is_set():
            if tail.grown():
                await asyncio.to_thread(tail.poll)
            found = await asyncio.to_thread(tail.since, cursor) if self._news(tail, cursor) else None
            if found is not None:
                name, content, cursor = found
                quiet_since = time.monotonic()
                yield f"event: {name}\ndata: {as_json(content)}\n\n"
            elif time.monotonic() - quiet_since > HEARTBEAT_SECONDS:
                quiet_since = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(POLL_SECONDS)

    def _news(self, tail: Tail, cursor: Cursor) -> bool:
        return cursor.generation != tail.generation or cursor.count != len(tail.records)

    def _file(self, name: str) -> Response:
        from starlette.responses import Response

        if name not in self.files:
            return _missing()
        return Response(self.files[name].content, media_type=self.files[name].kind)


async def _refuse(send: Send, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
    # The client may have left already.
    with contextlib.suppress(OSError):
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": text})


def _json(content: Any) -> Response:
    from starlette.responses import Response

    return Response(as_json(content), media_type="application/json")


def _text(text: str, status: int) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(text, status_code=status)


def _missing() -> Response:
    return _text("There is nothing here.\n", 404)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _stamp(path: Path) -> tuple[int, int]:
    """Changes with the records; sorts runs by their last record."""
    try:
        found = (path / RECORDS).stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns
