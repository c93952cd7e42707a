"""Every Python block of the course notes in ../shared/seeds runs with whet's names, and prints what the notes print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.huggingface.notes import Notebook, blocks_of, save_small_bert, with_whet

SHARED = Path(__file__).parents[3] / "shared"
NOTES = sorted((SHARED / "seeds").glob("*.txt"))
IDS = "[101, 2023, 2003, 1996, 2034, 6251, 1012, 102, 2023, 2003, 1996, 2117, 2028, 1012, 102]"
PADDED = "[[101, 2460, 6251, 1012, 102, 0, 0, 0, 0], [101, 2023, 2003, 1037, 2172, 2936, 6251, 1012, 102]]"
SIZES = "torch.Size([8, 67])"
# What a person sees, by the start of the note's file name.
SHOWN = {
    "000": (IDS, SIZES, "'[CLS]', 'this', 'is', 'the', 'first', 'sentence'", "num_rows: 3668"),
    "001": (IDS, SIZES, "num_rows: 1725", "(408, 2) (408,)", "1377", "'accuracy'", "'f1'"),
    "002": ("num_rows: 408",),
    "003": ("num_rows: 3668", "(408, 2) (408,)", "'accuracy'"),
    "004": (PADDED, "['[CLS]', 'short', 'sentence', '.', '[SEP]', '[PAD]'", "'attention_mask'"),
}
# One note is an excerpt: it uses what the course made before, and shows one step in a block that is not Python.
BEFORE = {
    "004": """
from whet import AutoTokenizer, DataCollatorWithPadding, load_dataset
raw_datasets = load_dataset("glue", "mrpc")
""",
}
IN_BETWEEN = {
    ("004", "num_training_steps ="): """
import torch
from torch.utils.data import DataLoader
train_dataloader = DataLoader(tokenized_datasets["train"], shuffle=True, batch_size=8, collate_fn=data_collator)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
model.to(device)
""",
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the data as `glue` and a small model as `bert-base-uncased`."""
    if not NOTES or not (SHARED / "data" / "glue").is_dir():
        pytest.skip("../shared/seeds and ../shared/data/glue are not here")
    folder = tmp_path_factory.mktemp("course")
    (folder / "glue").symlink_to(SHARED / "data" / "glue")
    save_small_bert(folder / "bert-base-uncased")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("note", NOTES, ids=lambda path: path.name[:3])
def test_the_note_runs_and_shows_its_numbers(note: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", workplace / "cache")
    monkeypatch.chdir(workplace)
    notebook, name = Notebook(), note.name[:3]
    notebook.run(BEFORE.get(name, ""))
    for code in blocks_of(note.read_text(encoding="utf-8")):
        for (which, mark), extra in IN_BETWEEN.items():
            if which == name and mark in code:
                notebook.run(extra)
        notebook.run(with_whet(code))
    for expected in SHOWN[name]:
        assert expected in notebook.shown, expected
