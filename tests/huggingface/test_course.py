"""docs/course.md and its notebook: every block runs, in order, offline."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.huggingface.notes import as_notebook, blocks_of, run_as_script, save_small_bert
from whet import Run

DOCS = Path(__file__).parents[2] / "docs"
MRPC = Path(__file__).parents[3] / "shared" / "data" / "glue" / "mrpc"
SAMPLE = Path(__file__).parents[2] / "src" / "whet" / "sample" / "pairs"


def make_workplace(folder: Path, rows: int | None) -> Path:
    """A folder with `bert-base-uncased`, and as `glue` MRPC if it is here, else the sample pairs."""
    import datasets

    for split in ("train", "validation", "test"):
        path = MRPC / f"{split}.parquet"
        table = datasets.Dataset.from_parquet(str(path), cache_dir=str(folder / "cache")) if path.is_file() else None
        table = table if table is not None else datasets.Dataset.from_list(sample_rows(split))
        kept = table.select(range(min(rows or len(table), len(table))))
        kept.to_parquet(str(folder / "glue" / "mrpc" / f"{split}.parquet"))
    card = "---\nconfigs:\n- config_name: mrpc\n  data_files:\n"
    card += "".join(f"  - split: {name}\n    path: mrpc/{name}.parquet\n" for name in ("train", "validation", "test"))
    (folder / "glue" / "README.md").write_text(card + "---\n")
    save_small_bert(folder / "bert-base-uncased")
    return folder


def sample_rows(split: str) -> list[dict[str, Any]]:
    with open(SAMPLE / f"{split}.csv", encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    return [{**row, "label": int(row["label"] == "paraphrase"), "idx": place} for place, row in enumerate(found)]


def test_every_block_of_the_guide_runs(tmp_path: Path) -> None:
    folder = make_workplace(tmp_path, rows=64)
    shown = run_as_script(blocks_of((DOCS / "course.md").read_text(encoding="utf-8")), folder)
    assert "[101, 2023, 2003, 1996, 2034, 6251, 1012, 102, 2023, 2003, 1996, 2117, 2028, 1012, 102]" in shown
    assert "(64, 2) (64,)" in shown
    assert Run(folder / "test-trainer").summary()["steps"] == 24
    assert (folder / "paraphrases" / "model.safetensors").is_file()


def test_the_guide_and_its_notebook_say_the_same() -> None:
    """To write the notebook anew: python -m tests.huggingface.notes."""
    expected = as_notebook((DOCS / "course.md").read_text(encoding="utf-8"))
    assert json.loads((DOCS / "course.ipynb").read_text(encoding="utf-8")) == expected


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_notebook_runs_on_the_whole_data(tmp_path: Path) -> None:
    folder = make_workplace(tmp_path, rows=None)
    cells = json.loads((DOCS / "course.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    shown = run_as_script(code, folder)
    if MRPC.is_dir():
        assert "torch.Size([8, 67])" in shown
        assert "(408, 2) (408,)" in shown
        assert "1377" in shown
