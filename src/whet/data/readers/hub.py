"""Loads data sets by name with the datasets library: `imdb`, `glue/mrpc`, `owner/name`, `owner/name/config`."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from whet.errors import DataError, EnvironmentFault

PROBE_SECONDS = 3.0
ANSWER_HOLDS_SECONDS = 60.0
_answers: dict[str, tuple[float, bool]] = {}
"""The time of each address's last check, and its result."""


def load_hub(name: str) -> Any:
    """Return all splits of a data set; afterwards the library's cache works without a network."""
    import datasets

    problems: list[Exception] = []
    with _quiet_hub():
        for path, config in _readings(name):
            try:
                return datasets.load_dataset(path, config)
            except Exception as error:  # the library raises many kinds of errors
                problems.append(error)
    raise _explained(name, problems)


@contextlib.contextmanager
def _quiet_hub() -> Iterator[None]:
    """Silence the hub's client."""
    import datasets

    log = logging.getLogger("huggingface_hub")
    level, offline, bars = log.level, datasets.config.HF_HUB_OFFLINE, datasets.are_progress_bars_disabled()
    log.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        with cache_only_without_network() as cut_off:
            datasets.config.HF_HUB_OFFLINE = offline or cut_off
            yield
    finally:
        datasets.config.HF_HUB_OFFLINE = offline
        log.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def cache_only_without_network() -> Iterator[bool]:
    """Make the hub's client use its cache at once if there is no network, instead of after a minute of retries.

    Yields whether the hub is unavailable, by the user's setting or for lack of a network.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = bool(before or not reachable(constants.ENDPOINT))
    try:
        yield constants.HF_HUB_OFFLINE
    finally:
        constants.HF_HUB_OFFLINE = before


def reachable(endpoint: str) -> bool:
    """Return whether the hub's address answers: one attempt of at most a few seconds."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # only the proxy can tell
    tried, answer = _answers.get(endpoint, (-ANSWER_HOLDS_SECONDS, False))
    if time.monotonic() - tried < ANSWER_HOLDS_SECONDS:
        return answer
    parts = urlsplit(endpoint)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    connected = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError), socket.create_connection((parts.hostname or "", port), PROBE_SECONDS):
            connected.set()

    # In a thread, because resolving the name has no time limit.
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(PROBE_SECONDS)
    _answers[endpoint] = (time.monotonic(), connected.is_set())
    return connected.is_set()


def _readings(name: str) -> list[tuple[str, str | None]]:
    """Return the readings of a name with one slash: data set and config, or owner and data set."""
    parts = name.split("/")
    if len(parts) == 1:
        return [(name, None)]
    if len(parts) == 2:
        return [(parts[0], parts[1]), (name, None)]
    return [("/".join(parts[:2]), parts[2])]


def _explained(name: str, problems: list[Exception]) -> Exception:
    for problem in problems:
        text = str(problem)
        if "Config name is missing" in text or "Available configs" in text or "BuilderConfig" in text:
            return DataError(f"the data set {name!r}: {text.splitlines()[0]}", f"Name a config: {name}/CONFIG.")
    text = " ".join(str(problem) for problem in problems)
    away = (
        "Couldn't reach",
        "offline",
        "ConnectionError",
        "ConnectError",
        "resolve",
        "timed out",
        "Cannot send a request",
    )
    if any(isinstance(problem, ConnectionError) for problem in problems) or any(word in text for word in away):
        return EnvironmentFault(
            f"There is no file or folder {name!r}, and the data set of that name is neither in the cache "
            "nor to be reached.",
            "Check the path, or load the data set once with a network.",
        )
    reason = str(problems[-1]).splitlines()[0].rstrip(".") if str(problems[-1]) else type(problems[-1]).__name__
    return DataError(f"There is no file or folder {name!r}, and no data set could be loaded: {reason}.")
