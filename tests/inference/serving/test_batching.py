from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from whet.inference.serving.batching import PART_ROWS, Batcher, DeadlinePassed, QueueFull


class Model:
    """Answers each row with its length and that of its pair; waits at a gate, and notes what it was given."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.batches: list[list[str]] = []

    def __call__(self, texts: list[str], pairs: list[str] | None) -> Any:
        self.entered.set()
        assert self.gate.wait(30)
        self.batches.append(texts)
        if "poison" in texts:
            raise ValueError("poison")
        return np.array([[len(text), len(pair)] for text, pair in zip(texts, pairs or [""] * len(texts), strict=True)])

    def busy(self, batcher: Batcher) -> Future[Any]:
        """Keep the thread in a batch of one row until the gate opens."""
        self.gate.clear()
        self.entered.clear()
        first = batcher.submit(["first"], None, 30)
        assert self.entered.wait(30)
        return first


@pytest.fixture
def model() -> Iterator[Model]:
    found = Model()
    yield found
    found.gate.set()


def batcher_of(model: Model, **settings: Any) -> Batcher:
    return Batcher(model, **settings)


def test_requests_that_wait_are_computed_together_and_get_their_own_rows(model: Model) -> None:
    batcher = batcher_of(model)
    first = model.busy(batcher)
    waiting = [batcher.submit(["x" * n, "y" * (n + 1)], None, 30) for n in range(1, 9)]
    model.gate.set()
    assert [each.result(30)[:, 0].tolist() for each in waiting] == [[n, n + 1] for n in range(1, 9)]
    assert first.result(30).tolist() == [[5, 0]]
    assert [len(batch) for batch in model.batches] == [1, 16]


def test_a_large_request_does_not_keep_a_small_one_waiting(model: Model) -> None:
    batcher = batcher_of(model, batch_rows=100)
    model.busy(batcher)
    large = batcher.submit([f"large {n}" for n in range(1000)], None, 30)
    small = batcher.submit(["small"], None, 30)
    model.gate.set()
    assert small.result(30).tolist() == [[5, 0]]
    assert large.result(30)[:, 0].tolist() == [len(f"large {n}") for n in range(1000)]
    assert "small" in model.batches[1]
    assert model.batches[1].count("small") == 1
    assert len(model.batches[1]) == 100
    assert sum("large" in text for text in model.batches[1][:PART_ROWS]) == PART_ROWS


def test_a_batch_ends_before_too_many_characters_but_takes_one_row(model: Model) -> None:
    batcher = batcher_of(model, batch_characters=100)
    model.busy(batcher)
    waiting = [batcher.submit(["x" * 40] * 5, None, 30), batcher.submit(["y" * 500], None, 30)]
    model.gate.set()
    assert [len(each.result(30)) for each in waiting] == [5, 1]
    assert [len(batch) for batch in model.batches] == [1, 2, 2, 1, 1]


def test_a_full_queue_refuses_and_has_room_again(model: Model) -> None:
    batcher = batcher_of(model, most_waiting=3)
    model.busy(batcher)
    waiting = batcher.submit(["a", "b", "c"], None, 30)
    with pytest.raises(QueueFull):
        batcher.submit(["d"], None, 30)
    model.gate.set()
    assert len(waiting.result(30)) == 3
    assert batcher.waiting == 0
    assert len(batcher.submit(["d"], None, 30).result(30)) == 1


def test_rows_of_a_client_that_left_are_not_computed(model: Model) -> None:
    batcher = batcher_of(model)
    model.busy(batcher)
    left = batcher.submit(["left"], None, 30)
    stays = batcher.submit(["stays"], None, 30)
    left.cancel()
    model.gate.set()
    stays.result(30)
    assert model.batches[1:] == [["stays"]]
    assert batcher.waiting == 0


def test_rows_whose_deadline_has_come_are_not_computed(model: Model) -> None:
    batcher = batcher_of(model)
    model.busy(batcher)
    late = batcher.submit(["late"], None, -1)
    model.gate.set()
    with pytest.raises(DeadlinePassed):
        late.result(30)
    assert model.batches == [["first"]]


def test_a_request_that_fails_fails_alone(model: Model) -> None:
    batcher = batcher_of(model)
    model.busy(batcher)
    good, bad, other = (batcher.submit([text], None, 30) for text in ("good", "poison", "other"))
    model.gate.set()
    assert good.result(30).tolist() == [[4, 0]]
    assert other.result(30).tolist() == [[5, 0]]
    with pytest.raises(ValueError, match="poison"):
        bad.result(30)


def test_pairs_and_single_texts_are_not_mixed(model: Model) -> None:
    batcher = batcher_of(model)
    model.busy(batcher)
    one, two = batcher.submit(["a"], None, 30), batcher.submit(["a"], ["bc"], 30)
    model.gate.set()
    assert (one.result(30).tolist(), two.result(30).tolist()) == ([[1, 0]], [[1, 2]])


def test_closing_answers_what_waits_and_takes_nothing_more(model: Model) -> None:
    batcher = batcher_of(model)
    model.busy(batcher)
    waiting = [batcher.submit(["x"] * 700, None, 30) for _ in range(3)]
    closing = threading.Thread(target=batcher.close)
    closing.start()
    model.gate.set()
    closing.join(30)
    assert [len(each.result(0)) for each in waiting] == [700] * 3
    with pytest.raises(QueueFull):
        batcher.submit(["late"], None, 30)


def test_sizes_of_batches_are_counted(model: Model) -> None:
    batcher = batcher_of(model)
    model.busy(batcher)
    waiting = batcher.submit(["x"] * 5, None, 30)
    model.gate.set()
    waiting.result(30)
    batcher.close()
    assert (batcher.batches, batcher.rows, batcher.batch_sizes) == (2, 6, {1: 1, 8: 1})
