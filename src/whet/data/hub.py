"""Data sets by name, through the datasets library: `imdb`, `glue/mrpc`, `owner/name`, `owner/name/config`."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from whet.errors import DataError, EnvironmentFault


def load_hub(name: str) -> Any:
    """All splits of a data set; the library's cache serves it without a network afterwards."""
    import datasets

    problems: list[Exception] = []
    with _quiet_hub():
        for path, config in _readings(name):
            try:
                return datasets.load_dataset(path, config)
            except Exception as error:  # the library raises whatever its layers raise
                problems.append(error)
    raise _explained(name, problems)


@contextlib.contextmanager
def _quiet_hub() -> Iterator[None]:
    """The hub's client without chatter; offline at once, not after half a minute of retries, without a network."""
    import datasets
    import huggingface_hub

    log = logging.getLogger("huggingface_hub")
    level, offline = log.level, (datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE)
    bars = datasets.are_progress_bars_disabled()
    log.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    if not any(offline) and not _reachable(huggingface_hub.constants.ENDPOINT):
        datasets.config.HF_HUB_OFFLINE = huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE = offline
        log.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


def _reachable(endpoint: str) -> bool:
    """Whether the hub's name resolves; behind a proxy only the proxy can tell."""
    parts = urlsplit(endpoint)
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    try:
        socket.getaddrinfo(parts.hostname, parts.port or 443)
    except OSError:
        return False
    return True


def _readings(name: str) -> list[tuple[str, str | None]]:
    """A name with one slash may be data set and config, or owner and data set."""
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
