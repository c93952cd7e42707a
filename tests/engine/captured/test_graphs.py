"""What is done to the library's code while it is captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from whet.engine.captured.graphs import NumbersOnDevice


class Operations(TorchDispatchMode):
    """Remembers what was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("number", "kind"), [(0.5, torch.float32), (3, torch.int64), (True, torch.bool)])
def test_a_number_is_made_on_its_device(number: Any, kind: torch.dtype) -> None:
    with Operations() as seen, NumbersOnDevice():
        made = torch.tensor(number, device="cpu")
    assert (made.item(), made.dtype, seen.names) == (number, kind, ["aten::full"])


def test_the_type_of_a_number_is_kept() -> None:
    with NumbersOnDevice():
        assert torch.tensor(0.0, device="cpu", dtype=torch.bfloat16).dtype == torch.bfloat16


def test_other_tensors_are_made_as_ever() -> None:
    with NumbersOnDevice():
        assert torch.tensor([1, 2], device="cpu").tolist() == [1, 2]
        assert torch.tensor(1.5).item() == 1.5
