"""Data sets by name, through the datasets library: `imdb`, `glue/mrpc`, `owner/name`, `owner/name/config`."""

from __future__ import annotations

from typing import Any

from whet.errors import DataError, EnvironmentFault


def load_hub(name: str) -> Any:
    """All splits of a data set; the library's cache serves it without a network afterwards."""
    import datasets

    problems: list[Exception] = []
    for path, config in _readings(name):
        try:
            datasets.disable_progress_bars()
            return datasets.load_dataset(path, config)
        except Exception as error:  # the library raises whatever its layers raise
            problems.append(error)
        finally:
            datasets.enable_progress_bars()
    raise _explained(name, problems)


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
