"""Serves a web application on a background thread: shared by the live page, the review page and `whet serve`.

uvicorn is imported when a server starts, so that importing this module is cheap.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from whet.errors import EnvironmentFault, UsageError, missing_extra

LOOPBACK = "127.0.0.1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every response: the page may load nothing from elsewhere, and no other site may embed it."""
START_SECONDS = 10.0


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    port: int
    _stop: Callable[[], None] = field(repr=False)

    def stop(self) -> None:
        """Stop the server and wait for its thread."""
        self._stop()

    @property
    def ssh_line(self) -> str:
        """The ssh command that shows the page on another machine."""
        return f"ssh -L {self.port}:{LOOPBACK}:{self.port} {socket.gethostname()}"


def listen(port: int, host: str = LOOPBACK) -> socket.socket:
    """Return a socket that accepts connections; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UsageError(
            f"There is no address {host!r} to listen on.", "Give one of this machine with --host."
        ) from None
    except OverflowError:
        raise UsageError(f"{port} is not a port.", "It must be from 0 to 65535.") from None
    # asyncio answers without delay (TCP_NODELAY) only where a socket says that it is TCP: else each answer takes 40 ms.
    listening = socket.socket(family, kind, protocol or socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise EnvironmentFault(
            f"Cannot listen on port {port}: {error.strerror or error}.", "Choose another one with --port."
        ) from None
    except OverflowError:
        listening.close()
        raise UsageError(f"{port} is not a port.", "It must be from 0 to 65535.") from None
    return listening


def run_in_background(
    make_app: Callable[[int], Any],
    listening: socket.socket,
    *,
    name: str,
    purpose: str,
    leaving: Callable[[], None],
    grace_seconds: float,
    **settings: Any,
) -> Server:
    """Serve an application from a thread. `make_app` gets the port; `leaving` is called before the server stops.

    Requests that are still being answered then have `grace_seconds` to end.
    """
    try:
        import uvicorn
    except ImportError:
        listening.close()
        raise missing_extra("uvicorn", "serve", purpose) from None
    host, port = listening.getsockname()[:2]
    try:
        app = make_app(port)
    except BaseException:
        listening.close()
        raise
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=grace_seconds,
        **settings,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name=name, daemon=True)
    thread.start()
    _wait_for(lambda: server.started or not thread.is_alive(), purpose)

    def stop() -> None:
        leaving()
        server.should_exit = True
        thread.join(timeout=grace_seconds + 10)
        listening.close()

    shown = f"[{host}]" if ":" in host else host
    return Server(f"http://{shown}:{port}/", port, stop)


def _wait_for(done: Callable[[], bool], purpose: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise EnvironmentFault(f"{purpose} did not start in time.")
        time.sleep(0.005)
