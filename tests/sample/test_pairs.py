"""The shipped sentence pairs keep the properties that make them usable as a sample."""

import csv
import re
from importlib.resources import files
from itertools import combinations

import pytest

SPLITS = ("train", "validation", "test")
LABELS = ("paraphrase", "different")
NEGATION = re.compile(r"\b(?:not|no|never|nobody|none|nothing|neither|nor|without|cannot)\b|n't\b", re.IGNORECASE)

Row = dict[str, str]


def read_split(split: str) -> list[Row]:
    source = files("whet.sample") / "pairs" / f"{split}.csv"
    return list(csv.DictReader(source.read_text(encoding="utf-8").splitlines(), strict=True))


ROWS = {split: read_split(split) for split in SPLITS}
ALL_ROWS = [row for split in SPLITS for row in ROWS[split]]


def words(sentence: str) -> list[str]:
    return re.findall(r"\w+(?:'\w+)*", sentence.casefold())


def normalised(sentence: str) -> str:
    return " ".join(words(sentence))


def jaccard(row: Row) -> float:
    first, second = set(words(row["sentence1"])), set(words(row["sentence2"]))
    return len(first & second) / len(first | second)


def best_threshold_accuracy(scores: list[float], is_paraphrase: list[bool]) -> float:
    """The accuracy of the best single cut, whichever side of it is called a paraphrase."""
    best = 0.0
    for cut in set(scores):
        hits = sum((score >= cut) == truth for score, truth in zip(scores, is_paraphrase, strict=True))
        best = max(best, hits / len(scores), 1 - hits / len(scores))
    return best


def test_best_threshold_accuracy_sees_a_score_that_separates_the_labels() -> None:
    assert best_threshold_accuracy([0.1, 0.2, 0.8, 0.9], [True, True, False, False]) == 1.0


@pytest.mark.parametrize(("split", "minimum"), [("train", 850), ("validation", 180), ("test", 230)])
def test_each_split_has_enough_rows(split: str, minimum: int) -> None:
    assert len(ROWS[split]) >= minimum


def test_there_are_at_least_thirteen_hundred_pairs() -> None:
    assert len(ALL_ROWS) >= 1300


@pytest.mark.parametrize("split", SPLITS)
def test_columns_and_labels_are_the_documented_ones(split: str) -> None:
    assert list(ROWS[split][0]) == ["sentence1", "sentence2", "label"]
    assert {row["label"] for row in ROWS[split]} == set(LABELS)


@pytest.mark.parametrize("split", SPLITS)
def test_files_are_utf8_with_unix_line_ends(split: str) -> None:
    raw = (files("whet.sample") / "pairs" / f"{split}.csv").read_bytes()
    assert b"\r" not in raw
    assert raw.endswith(b"\n")
    assert not raw.startswith(b"\xef\xbb\xbf")


@pytest.mark.parametrize("split", SPLITS)
def test_labels_are_balanced_within_two_points(split: str) -> None:
    share = sum(row["label"] == "paraphrase" for row in ROWS[split]) / len(ROWS[split])
    assert 0.48 <= share <= 0.52


@pytest.mark.parametrize("split", SPLITS)
def test_sentences_are_six_to_twenty_two_words_long(split: str) -> None:
    sentences = [row[column] for row in ROWS[split] for column in ("sentence1", "sentence2")]
    assert [sentence for sentence in sentences if not 6 <= len(words(sentence)) <= 22] == []


def test_no_pair_appears_twice_not_even_swapped() -> None:
    pairs = [frozenset((normalised(row["sentence1"]), normalised(row["sentence2"]))) for row in ALL_ROWS]
    assert len(set(pairs)) == len(pairs)


def test_no_sentence_is_paired_with_itself() -> None:
    assert [row for row in ALL_ROWS if normalised(row["sentence1"]) == normalised(row["sentence2"])] == []


def test_no_sentence_appears_in_two_splits() -> None:
    sentences = {
        split: {normalised(row[column]) for row in ROWS[split] for column in ("sentence1", "sentence2")}
        for split in SPLITS
    }
    for one, other in combinations(SPLITS, 2):
        assert sentences[one] & sentences[other] == set()


def test_word_overlap_alone_does_not_tell_the_label() -> None:
    truths = [row["label"] == "paraphrase" for row in ALL_ROWS]
    assert best_threshold_accuracy([jaccard(row) for row in ALL_ROWS], truths) < 0.65


def test_difference_in_length_alone_does_not_tell_the_label() -> None:
    truths = [row["label"] == "paraphrase" for row in ALL_ROWS]
    gaps = [float(abs(len(words(row["sentence1"])) - len(words(row["sentence2"])))) for row in ALL_ROWS]
    assert best_threshold_accuracy(gaps, truths) < 0.65


def test_both_labels_use_negations_at_comparable_rates() -> None:
    rates = {}
    for label in LABELS:
        texts = [f"{row['sentence1']} {row['sentence2']}" for row in ALL_ROWS if row["label"] == label]
        rates[label] = sum(bool(NEGATION.search(text)) for text in texts) / len(texts)
    assert min(rates.values()) > 0.1
    assert abs(rates["paraphrase"] - rates["different"]) < 0.05
