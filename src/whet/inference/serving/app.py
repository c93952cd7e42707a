"""The ASGI application of `whet serve`: access control and the response of each address."""

from __future__ import annotations

import asyncio
import hmac
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import whet
from whet.inference.serving import openapi
from whet.inference.serving.batching import Batcher, DeadlinePassed, QueueFull
from whet.inference.serving.counters import Counters
from whet.inference.serving.requests import (
    BodyMemory,
    Disconnected,
    Headers,
    Limits,
    PredictRequest,
    Problem,
    Receive,
    busy,
    check_head,
    header,
    parse,
    read_body,
)
from whet.runs.served_page import PageFile, page_files
from whet.utils.web_server import HEADERS

if TYPE_CHECKING:
    from whet.inference.predictor import Predictor

Send = Callable[[Any], Awaitable[None]]
FEW_ROWS = 64
"""Up to this many rows are formatted on the event loop; more on a thread, while others are answered."""
LARGE_BODY = 64_000
LINGER_BYTES, LINGER_SECONDS = 16_000_000, 2.0
"""How much of a refused request is still read, so that its client sees the refusal instead of a broken connection."""
OPEN_TO_ALL = ("/", "/health", "/ready", "/openapi.json")


@dataclass(frozen=True)
class RequestGuard:
    """Decides which requests are answered."""

    hosts: frozenset[bytes]
    """Accepted values of the Host header; those without a port match every port."""
    token: bytes | None = None

    def check(self, path: str, headers: Headers) -> None:
        """Raise a Problem for an unknown Host, another Origin or a missing token."""
        if path not in ("/health", "/ready"):  # a cluster requests these by its own address
            named = [value.lower() for name, value in headers if name == b"host"]
            if len(named) != 1 or not self._knows(named[0]):
                raise Problem(400, "The Host header names another server; see --allow-host.", close=True)
            origins = [value.lower() for name, value in headers if name == b"origin"]
            if any(origin not in (b"http://" + named[0], b"https://" + named[0]) for origin in origins):
                raise Problem(403, "Pages of other sites are not answered.", close=True)
        if self.token is not None and path not in OPEN_TO_ALL and not path.startswith("/assets/"):
            scheme, _, given = header(headers, b"authorization").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token):
                raise Problem(401, "A bearer token is needed.", headers={"www-authenticate": "Bearer"}, close=True)

    def _knows(self, host: bytes) -> bool:
        return host in self.hosts or host.rpartition(b":")[0] in self.hosts


@dataclass
class Answer:
    """Status, body and media type of a response."""

    body: bytes
    kind: str = "application/json"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    close: bool = False


class App:
    """Answers HTTP. It listens before its model is loaded; `open` makes it ready, `drain` not ready again."""

    def __init__(self, guard: RequestGuard, limits: Limits) -> None:
        self.guard, self.limits = guard, limits
        self.counters = Counters()
        self.predictor: Predictor | None = None
        self.batcher: Batcher | None = None
        self.draining = False
        self._held = BodyMemory(16 * limits.body_bytes)
        self._files = page_files("whet.inference.serving", "try", title="Try the model · whet")
        self._routes: dict[str, tuple[str, Callable[[Headers, Receive], Awaitable[Answer]]]] = {
            "/": ("GET", self._index),
            "/predict": ("POST", self._predict),
            "/model": ("GET", self._model),
            "/health": ("GET", self._health),
            "/ready": ("GET", self._ready),
            "/metrics": ("GET", self._metrics),
            "/openapi.json": ("GET", self._openapi),
            **{f"/assets/{name}": ("GET", self._asset(file)) for name, file in self._files.items()},
        }

    def open(self, predictor: Predictor, batcher: Batcher) -> None:
        """The model is loaded: answer from now on."""
        self.predictor, self.batcher = predictor, batcher

    @property
    def ready(self) -> bool:
        return self.batcher is not None and not self.draining

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, known = scope["path"], scope["path"] in self._routes
        self.counters.open += 1
        try:
            try:
                answer = await self._answer(path, scope["method"], scope["headers"], receive)
            except Problem as problem:
                answer = Answer(
                    problem.body(), "application/problem+json", problem.status, problem.headers, problem.close
                )
            except Disconnected:
                return
            except Exception as error:
                _report(error)
                answer = Answer(Problem(500, "The server failed.").body(), "application/problem+json", 500)
            self.counters.requests[path if known else "other", answer.status] += 1
            await self._send(answer, receive, send, with_body=scope["method"] != "HEAD")
        except OSError:
            pass  # the client left before the response
        finally:
            self.counters.open -= 1

    async def _answer(self, path: str, method: str, headers: Headers, receive: Receive) -> Answer:
        self.guard.check(path, headers)
        if path not in self._routes:
            raise Problem(404, "There is nothing here; /openapi.json lists what there is.", close=True)
        allowed, handler = self._routes[path]
        if method != allowed and (method, allowed) != ("HEAD", "GET"):
            raise Problem(405, f"Use {allowed}.", headers={"allow": allowed}, close=True)
        return await handler(headers, receive)

    async def _send(self, answer: Answer, receive: Receive, send: Send, *, with_body: bool) -> None:
        names = {**HEADERS, **answer.headers, "content-type": answer.kind, "content-length": str(len(answer.body))}
        if answer.close or self.draining:
            names["connection"] = "close"
        head = [(name.encode(), value.encode()) for name, value in names.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": head})
        body = answer.body if with_body else b""
        await send({"type": "http.response.body", "body": body, "more_body": answer.close})
        if answer.close:
            await _read_the_rest(receive)
            await send({"type": "http.response.body", "body": b""})

    # Addresses -------------------------------------------------------------------------------------

    async def _predict(self, headers: Headers, receive: Receive) -> Answer:
        began = time.monotonic()
        check_head(headers, self.limits)
        kept: list[int] = []
        try:
            body = await read_body(receive, self.limits, self._held, kept)
            pairs = self.predictor.pairs if self.predictor is not None else None
            if self.batcher is None:
                raise busy("The model is still being loaded.")
            if len(body) > LARGE_BODY:
                asked = await asyncio.to_thread(parse, body, self.limits, pairs)
            else:
                asked = parse(body, self.limits, pairs)
            del body
            answer = Answer(await self._predictions(asked, receive))
        finally:
            self._held.now -= sum(kept)
        self.counters.predicted(time.monotonic() - began)
        return answer

    async def _predictions(self, asked: PredictRequest, receive: Receive) -> bytes:
        assert self.predictor is not None
        assert self.batcher is not None
        if not asked.texts:
            return _json({"predictions": []})
        try:
            waiting = asyncio.wrap_future(self.batcher.submit(asked.texts, asked.pairs, asked.seconds))
        except QueueFull as full:
            raise busy(full.message) from None
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            both: set[asyncio.Future[Any]] = {waiting, gone}
            await asyncio.wait(both, timeout=asked.seconds, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                logits = waiting.result()
            elif gone.done():
                raise Disconnected
            else:
                raise DeadlinePassed("")
        except DeadlinePassed:
            raise Problem(504, f"The answer was not ready within {asked.seconds:g} seconds.") from None
        finally:
            waiting.cancel()
            gone.cancel()
        predictor = self.predictor

        def put_into_words() -> bytes:
            return _json({"predictions": [each.to_dict() for each in predictor.decode(logits, raw=asked.raw)]})

        return await asyncio.to_thread(put_into_words) if len(logits) > FEW_ROWS else put_into_words()

    async def _model(self, headers: Headers, receive: Receive) -> Answer:
        if self.predictor is None:
            raise busy("The model is still being loaded.")
        task, limits = self.predictor.task, self.limits
        content = {
            "task": task.kind,
            "labels": list(task.labels),
            "pairs": self.predictor.pairs,
            "columns": self.predictor.columns,
            "max_tokens": self.predictor.max_length,
            "long": self.predictor.long,
            "thresholds": self.predictor.decisions.thresholds,
            "limits": {"rows": limits.rows, "characters": limits.characters, "body_bytes": limits.body_bytes},
        }
        return Answer(_json(content))

    async def _health(self, headers: Headers, receive: Receive) -> Answer:
        return Answer(_json({"status": "ok"}))

    async def _ready(self, headers: Headers, receive: Receive) -> Answer:
        if not self.ready:
            raise busy("The server is draining." if self.draining else "The model is still being loaded.")
        return Answer(_json({"status": "ready"}))

    async def _metrics(self, headers: Headers, receive: Receive) -> Answer:
        text = self.counters.text(self.batcher, self.ready)
        return Answer(text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, headers: Headers, receive: Receive) -> Answer:
        # The model's labels are shown only to clients with a token.
        known = self.predictor if self.guard.token is None else None
        labels, pairs = (known.task.labels, known.pairs) if known else ((), None)
        has_token = self.guard.token is not None
        return Answer(_json(openapi.describe(whet.__version__, self.limits, labels, pairs, has_token)))

    async def _index(self, headers: Headers, receive: Receive) -> Answer:
        return Answer(self._files["index.html"].content, self._files["index.html"].kind)

    def _asset(self, file: PageFile) -> Callable[[Headers, Receive], Awaitable[Answer]]:
        async def answer(headers: Headers, receive: Receive) -> Answer:
            return Answer(file.content, file.kind)

        return answer


async def _disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read_the_rest(receive: Receive) -> None:
    """Read a little more of a refused request: a client that is still sending would miss the response."""
    left = LINGER_BYTES
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _json(content: Any) -> bytes:
    # Escapes are ASCII: a label may hold what UTF-8 cannot encode.
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def _report(error: Exception) -> None:
    """Report an internal error on stderr: its place in the code, and nothing of the request."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno} in {last.name}"
    print(f"whet serve: a request failed: {type(error).__name__} at {where}", file=sys.stderr, flush=True)
