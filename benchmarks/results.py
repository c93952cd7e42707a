"""Where the benchmarks keep what they measured: one JSON file each, with the versions and the machine."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def write_results(name: str, packages: tuple[str, ...], **content: Any) -> Path:
    """Keep what was measured in `benchmarks/results/NAME.json`."""
    found = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "memory_gb": memory_gb()},
        "versions": {"python": platform.python_version(), **{each: version_of(each) for each in packages}},
        **content,
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return path


def processor() -> str:
    """The processor's own name where the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{platform.machine()}, {names[0]}" if names else platform.machine()


def memory_gb() -> float:
    """Of this machine."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)


def version_of(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
