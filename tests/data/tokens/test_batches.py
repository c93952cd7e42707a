import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whet.data.tokens.batches import BatchOrder, pack, pad, permutation, rank_slice
from whet.data.tokens.table import Tokens, Truncation
from whet.errors import UsageError

KINDS = ("random", "bucketed", "sequential")


def make_tokens(rows, types=True, labels=None):
    flat = np.array([token for row in rows for token in row], dtype=np.int32)
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    kinds = (flat % 2).astype(np.uint8) if types else None
    return Tokens(flat, offsets, kinds, labels, Truncation(), "")


def make_order(rows, batch_size, seed=0, kind="random", **settings):
    lengths = np.random.default_rng(rows).integers(1, 9, rows)
    return BatchOrder(rows, batch_size, seed, kind, lengths, **settings)


def epoch_of(order, epoch):
    return [order.batch(epoch, index) for index in range(order.steps_per_epoch)]


orders = st.builds(
    make_order,
    rows=st.integers(0, 400),
    batch_size=st.integers(1, 40),
    seed=st.integers(-5, 2**70),
    kind=st.sampled_from(KINDS),
    drop_last=st.booleans(),
)
some_rows = st.lists(st.lists(st.integers(0, 30000), max_size=7), min_size=1, max_size=9)


@given(orders, st.integers(0, 3))
def test_every_row_comes_once_an_epoch(order, epoch):
    rows = np.concatenate([np.zeros(0, int), *epoch_of(order, epoch)])
    dropped = order.rows % order.batch_size if order.drop_last else 0
    assert len(np.unique(rows)) == len(rows) == order.rows - dropped
    assert np.isin(rows, np.arange(order.rows)).all()


@given(orders)
def test_every_batch_is_full_but_the_last(order):
    sizes = [len(batch) for batch in epoch_of(order, 0)]
    assert all(size == order.batch_size for size in sizes[:-1])
    assert len(sizes) == order.steps_per_epoch


@given(orders, st.integers(0, 5), st.data())
def test_any_position_is_reached_at_once(order, epoch, data):
    batches = epoch_of(order, epoch)
    if batches:
        index = data.draw(st.integers(0, len(batches) - 1))
        fresh = BatchOrder(order.rows, order.batch_size, order.seed, order.kind, order.lengths, order.drop_last)
        assert (fresh.at(epoch * fresh.steps_per_epoch + index) == batches[index]).all()


@given(orders, st.integers(1, 9))
def test_processes_share_the_epoch_without_gap_or_overlap(order, world):
    for batch in epoch_of(order, 1):
        parts = [rank_slice(batch, rank, world) for rank in range(world)]
        assert (np.concatenate(parts) == batch).all()
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_order_is_the_same_on_every_machine_and_version():
    assert permutation(8, 42, 0, 0).tolist() == [0, 1, 4, 2, 6, 5, 7, 3]


@pytest.mark.parametrize("kind", ["random", "bucketed"])
def test_seeds_and_epochs_give_other_orders(kind):
    first = np.concatenate(epoch_of(make_order(300, 8, 1, kind), 0))
    assert (first != np.concatenate(epoch_of(make_order(300, 8, 1, kind), 1))).any()
    assert (first != np.concatenate(epoch_of(make_order(300, 8, 2, kind), 0))).any()


def test_an_epoch_that_was_left_is_the_same_when_it_comes_back():
    order = make_order(100, 8)
    before = order.batch(0, 3).copy()
    for epoch in range(1, 5):
        order.batch(epoch, 0)
    assert (order.batch(0, 3) == before).all()


def test_buckets_put_like_lengths_together_and_stay_shuffled():
    lengths = np.random.default_rng(0).integers(5, 100, 4000)

    def padded(kind):
        batches = epoch_of(BatchOrder(4000, 16, 3, kind, lengths), 0)
        return sum(lengths[batch].max() * len(batch) for batch in batches) / lengths.sum()

    assert padded("random") > 1.5
    assert padded("bucketed") < 1.1
    means = [lengths[batch].mean() for batch in epoch_of(BatchOrder(4000, 16, 3, "bucketed", lengths), 0)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2


def test_sequential_is_input_order():
    assert np.concatenate(epoch_of(make_order(10, 4, kind="sequential"), 7)).tolist() == list(range(10))


def test_a_batch_that_is_not_there_is_an_index_error():
    with pytest.raises(IndexError, match="an epoch has 3"):
        make_order(10, 4).batch(0, 3)


def test_batches_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        make_order(10, 4).batch(0, 0)[0] = 1


@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"rows": -1}, {"kind": "sorted"}, {"kind": "bucketed", "lengths": None}]
)
def test_an_impossible_order_is_refused(settings):
    with pytest.raises(UsageError):
        BatchOrder(**{"rows": 4, "batch_size": 2, "seed": 0, "lengths": np.ones(4), **settings})


@given(some_rows, st.data())
def test_packed_rows_come_apart_as_they_were(rows, data):
    tokens = make_tokens(rows)
    chosen = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1)))
    packed = pack(tokens, chosen)
    assert [row.tolist() for row in np.split(packed.input_ids, packed.cu_seqlens[1:-1])] == [rows[i] for i in chosen]
    positions = [position for i in chosen for position in range(len(rows[i]))]
    assert packed.position_ids.tolist() == positions
    assert packed.max_length == max(len(rows[i]) for i in chosen)
    assert packed.token_type_ids.tolist() == (packed.input_ids % 2).tolist()


@given(some_rows, st.sampled_from([1, 4, 8]))
def test_padding_and_packing_hold_the_same_tokens(rows, multiple):
    tokens, chosen = make_tokens(rows), np.arange(len(rows))[::-1]
    padded, packed = pad(tokens, chosen, pad_id=-7, multiple=multiple), pack(tokens, chosen)
    mask = padded["attention_mask"].astype(bool)
    assert (padded["input_ids"][mask] == packed.input_ids).all()
    assert (padded["input_ids"][~mask] == -7).all()
    assert (padded["token_type_ids"][mask] == packed.token_type_ids).all()
    width = padded["input_ids"].shape[1]
    assert width % multiple == 0
    assert width - packed.max_length < multiple


def test_padding_stands_on_the_right():
    batch = pad(make_tokens([[5, 6, 7], [8]], types=False), np.array([1, 0]), pad_id=0)
    assert batch["input_ids"].tolist() == [[8, 0, 0], [5, 6, 7]]
    assert batch["attention_mask"].tolist() == [[1, 0, 0], [1, 1, 1]]
    assert set(batch) == {"input_ids", "attention_mask"}


def test_labels_follow_their_rows():
    labels = np.array([[0, 1], [1, 0], [1, 1]], dtype=np.float32)
    tokens = make_tokens([[1], [2], [3]], labels=labels)
    assert pad(tokens, np.array([2, 0]), pad_id=0)["labels"].tolist() == [[1, 1], [0, 1]]
    assert pack(tokens, np.array([1])).labels.dtype == np.float32


def test_batches_have_the_types_that_models_take():
    tokens = make_tokens([[1, 2], [3]], labels=np.array([0, 1]))
    padded, packed = pad(tokens, np.array([0]), pad_id=0), pack(tokens, np.array([0, 1]))
    assert {array.dtype for array in padded.values()} == {np.dtype(np.int64)}
    assert packed.input_ids.dtype == packed.position_ids.dtype == packed.token_type_ids.dtype == np.int64
    assert packed.cu_seqlens.dtype == np.int32


def test_no_rows_make_an_empty_batch():
    tokens = make_tokens([[1, 2]])
    assert pad(tokens, np.zeros(0, int), pad_id=0)["input_ids"].shape[0] == 0
    assert pack(tokens, np.zeros(0, int)).cu_seqlens.tolist() == [0]


def test_a_rank_outside_the_world_is_refused():
    with pytest.raises(ValueError, match="rank 2 of 2"):
        rank_slice(np.arange(4), 2, 2)


def test_what_is_not_asked_for_pads_no_further_and_drops_no_row():
    batch = pad(make_tokens([[1, 2, 3], [4]]), np.arange(2), pad_id=9)
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 9, 9]]
    assert batch["token_type_ids"].tolist() == [[1, 0, 1], [0, 0, 0]]
    assert BatchOrder(rows=5, batch_size=2, seed=0).steps_per_epoch == 3
