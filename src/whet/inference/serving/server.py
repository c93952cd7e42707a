"""Start and stop `whet serve`.

    running = serve("runs/reviews-001", port=8789)     # returns when the model is ready
    print(running.url)
    running.stop()                                     # answers what was accepted, then closes

On a loopback address anyone on this machine may ask, under a loopback name. On any other address every client needs
the bearer token, and the Host header must be a name that was allowed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import EnvironmentFault, UsageError, missing_extra
from whet.inference.serving.app import App, RequestGuard
from whet.inference.serving.batching import Batcher
from whet.inference.serving.requests import Limits
from whet.utils.web_server import LOOPBACK, Server, listen, run_in_background

if TYPE_CHECKING:
    from whet.inference.predictor import Predictor

USUAL_PORT = 8789
CONNECTIONS = 1000
HEAD_SECONDS = 10.0
"""Time until the headers of a request have arrived, and until a connection without any is closed."""
LEAVING_SECONDS = 0.5
"""Time between the signal to stop and closing the socket: clients are still answered, and told to connect elsewhere."""
SHORTEST_TOKEN = 16
WARM_UP = ("A short text.", "A somewhat longer text, of a few more words than the other one has.")


@dataclass(frozen=True)
class Settings:
    """The settings of a server."""

    host: str = LOOPBACK
    port: int = USUAL_PORT
    token_file: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    queue_rows: int = 16_384
    limits: Limits = field(default_factory=Limits)
    device: str = "auto"
    precision: str = "auto"
    trust_remote_code: bool = False


@dataclass(frozen=True)
class ModelServer(Server):
    """A running model server."""

    app: App


def serve(path: Path | str, settings: Settings) -> ModelServer:
    """Listen, load the model, and return when it is ready."""
    guard = make_guard(settings)
    listening = listen(settings.port, settings.host)
    apps: list[App] = []

    def make_app(port: int) -> App:
        apps.append(App(_with_port(guard, settings, port), settings.limits))
        return apps[0]

    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # it logs a line per broken request
    running = run_in_background(
        make_app,
        listening,
        name="whet-serve",
        purpose="whet serve",
        leaving=lambda: _drain(apps[0]),
        grace_seconds=settings.limits.deadline_seconds + settings.limits.read_seconds,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=60,
        http=_protocol(),
    )
    app = apps[0]
    try:
        app.open(*_loaded(path, settings))
    except BaseException:
        running.stop()
        raise

    def stop() -> None:
        running.stop()
        assert app.batcher is not None
        app.batcher.close()

    return ModelServer(running.url, running.port, stop, app)


def _loaded(path: Path | str, settings: Settings) -> tuple[Predictor, Batcher]:
    """Return the model after a first prediction: the first forward pass takes much longer."""
    from whet.engine.logits import tokens_per_batch
    from whet.inference.predictor import Predictor
    from whet.utils.memory import bound_compiled_code

    bound_compiled_code()
    try:
        predictor = Predictor(
            path,
            device=settings.device,
            precision=settings.precision,
            trust_remote_code=settings.trust_remote_code,
        )
        for text in WARM_UP:
            predictor.logits([text], [text] if predictor.pairs else None)
    except MemoryError:
        raise EnvironmentFault(f"The model {str(path)!r} does not fit into memory.") from None
    batcher = Batcher(
        predictor.logits,
        most_waiting=settings.queue_rows,
        batch_characters=4 * tokens_per_batch(predictor.hardware.device),  # English has about four per token
    )
    return predictor, batcher


def _drain(app: App) -> None:
    """Stay available but not ready, so that clients of /ready notice in time."""
    app.draining = True
    time.sleep(LEAVING_SECONDS)


# Access control ------------------------------------------------------------------------------------


def make_guard(settings: Settings) -> RequestGuard:
    """Return the accepted tokens and hosts; raise if the server would be open to a network without a token."""
    token = _token(settings.token_file) if settings.token_file is not None else None
    if token is None and not is_loopback(settings.host):
        raise UsageError(
            f"{settings.host!r} can be reached from other machines, and there is no token.",
            "Give a file that holds one with --token-file, or leave --host out.",
        )
    return RequestGuard(frozenset(), token)


def _with_port(guard: RequestGuard, settings: Settings, port: int) -> RequestGuard:
    own = ("127.0.0.1", "localhost", "[::1]")
    hosts = {f"{name}:{port}" for name in own} | {name.lower() for name in settings.allow_hosts}
    if port == 80:
        hosts |= set(own)
    if not is_loopback(settings.host):
        # A container or proxy may show another port than the one listened on.
        hosts |= {settings.host.lower(), f"[{settings.host.lower()}]", socket.gethostname().lower(), *own}
    return RequestGuard(frozenset(name.encode() for name in hosts), guard.token)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _token(path: Path) -> bytes:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII"
        raise UsageError(f"The token file {str(path)!r} cannot be read: {reason}.") from None
    if len(token) < SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise UsageError(
            f"The token in {str(path)!r} must be one word of at least {SHORTEST_TOKEN} characters.",
            "Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE",
        )
    return token.encode()


# Slow clients --------------------------------------------------------------------------------------


def _protocol() -> Any:
    """Return uvicorn's HTTP/1.1 protocol with a time limit for the headers of a request."""
    try:
        from uvicorn.protocols.http.h11_impl import H11Protocol
    except ImportError:
        raise missing_extra("uvicorn", "serve", "whet serve") from None

    class PunctualProtocol(H11Protocol):  # type: ignore[misc, unused-ignore]
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_head()

        def data_received(self, data: bytes) -> None:
            idle = self.cycle is None or self.cycle.response_complete
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget_head()
            elif idle and self._timer is None and not self.transport.is_closing():
                self._expect_head()  # the first bytes of another request

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._forget_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_head()
            super().connection_lost(exc)

        def _expect_head(self) -> None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

        def _forget_head(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _too_slow(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.write(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                self.transport.close()

    return PunctualProtocol
