from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import whet
from whet.training.evaluation import Evaluator


def test_validation_rows_are_not_computed_once_more_at_the_end(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[tuple[str, Any]] = []
    logits = Evaluator.logits

    def counted(self: Evaluator, split: str, rows: Any = None) -> Any:
        found = logits(self, split, rows)
        computed.append((split, found))
        return found

    monkeypatch.setattr(Evaluator, "logits", counted)
    settings = {"model": str(tiny_model_folder), "max_steps": 4, "evaluations": 2, "run": str(tmp_path / "run")}
    run = whet.fit("sample/pairs", **settings)
    assert [split for split, _ in computed] == ["validation", "train"] * 2 + ["test"]
    table = pq.read_table(tmp_path / "run" / "predictions.parquet", filters=[("split", "=", "validation")])
    assert run.best is not None
    best = [found for split, found in computed if split == "validation"][0 if run.best.step == 2 else 1]
    assert table["logits"].to_pylist() == best.tolist()
