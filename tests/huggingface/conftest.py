"""What the tests of the Trainer share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.huggingface.parity")


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_look_at() -> Iterator[None]:
    """Every training begins with a look for garbage, which takes a third of a second with all libraries loaded."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
