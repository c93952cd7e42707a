from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, modeling_utils

from tests.conftest import small_model
from whet.models.pretrained import save_model
from whet.utils.safetensors_files import TensorFile, save_tensors

TENSORS = {
    "b": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(7),
    "nothing": torch.zeros(0, 4),
    "flags": torch.tensor([True, False, True]),
}


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_has_the_bytes_that_the_library_writes(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_tensors(TENSORS, tmp_path / "own", metadata)
    save_file(TENSORS, tmp_path / "theirs", metadata)
    assert (tmp_path / "own").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_model_has_the_bytes_that_the_library_saves(tmp_path: Path) -> None:
    model = small_model("bert")
    save_model(model, None, tmp_path / "own")
    model.save_pretrained(tmp_path / "theirs")
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("own", "theirs")]
    assert files[0] == files[1]
    for name in files[0]:
        assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()


def test_saving_a_model_says_the_sum_of_its_weights(tmp_path: Path) -> None:
    sums = save_model(small_model("bert"), None, tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert sums == {"model.safetensors": hashlib.sha256(weights).hexdigest()}


def test_sums_are_of_the_own_files_while_others_save_too(tmp_path: Path) -> None:
    others, own, stop = small_model("bert", width=64), small_model("bert"), threading.Event()

    def save_others() -> None:
        while not stop.is_set():
            others.save_pretrained(tmp_path / "others")

    other = threading.Thread(target=save_others)
    other.start()
    try:
        for number in range(20):
            sums = save_model(own, None, tmp_path / str(number))
            weights = (tmp_path / str(number) / "model.safetensors").read_bytes()
            assert sums == {"model.safetensors": hashlib.sha256(weights).hexdigest()}
    finally:
        stop.set()
        other.join()


def test_the_library_has_its_own_writer_again_after_saves_at_once(tmp_path: Path) -> None:
    model, writer = small_model("bert"), modeling_utils.safe_save_file
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: save_model(model, None, tmp_path / str(number)), range(12)))
    assert modeling_utils.safe_save_file is writer


def test_a_model_is_saved_into_the_folder_it_is_mapped_from(tmp_path: Path) -> None:
    small_model("bert").save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_model(model, None, tmp_path)
    found = TensorFile(tmp_path / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert not list(tmp_path.glob("*.tmp"))


def test_types_that_only_the_library_knows_are_written_by_it(tmp_path: Path) -> None:
    save_tensors({"a": torch.ones(3, dtype=torch.complex64)}, tmp_path / "file")
    assert torch.equal(TensorFile(tmp_path / "file")["a"], torch.ones(3, dtype=torch.complex64))


def test_tensors_of_a_file_are_read_by_name(tmp_path: Path) -> None:
    save_tensors(TENSORS, tmp_path / "file")
    found = TensorFile(tmp_path / "file")
    assert set(found) == set(TENSORS)
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    assert "other" not in found
    with pytest.raises(KeyError):
        found["other"]
