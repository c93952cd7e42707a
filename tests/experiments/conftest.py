"""Small tunings with a tiny model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest


def write_reviews(path: Path, rows: int = 120) -> Path:
    chosen = random.Random(3)
    lines = ["review,stars"]
    for index in range(rows):
        words = " ".join(chosen.choices(["film", "plot", "town", "music", "scene"], k=5))
        lines.append(f"{'good' if index % 2 else 'bad'} {words} {index},{'up' if index % 2 else 'down'}")
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def reviews(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_reviews(tmp_path / "reviews.csv")


@pytest.fixture
def small(tiny_model_folder: Path) -> dict[str, Any]:
    """Settings of a tuning that takes seconds."""
    return {"model": str(tiny_model_folder), "minutes": 600, "trials": 3, "epochs": 1, "learning_rate": 0.01}
