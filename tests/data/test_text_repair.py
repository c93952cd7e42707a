"""Texts that were damaged on their way are found, shown and mended; other texts stay as they are."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.audit.test_audit import found, table
from tests.data_files import labelled, load
from whet.data.audit.audit import audit
from whet.data.text_repair import DAMAGES, repair, repaired


@pytest.mark.parametrize(
    ("damaged", "meant"),
    [
        ("cafÃ© crÃ¨me", "café crème"),
        ("itâ€™s Â£5", "it’s £5"),
        ("Ð¿Ñ€Ð¸Ð²ÐµÑ‚", "привет"),
        ("fish &amp; chips", "fish & chips"),
        ("a &amp;lt; b", "a < b"),
        ("caf&Atilde;&copy;", "café"),
        ("it&#39;s&nbsp;so", "it's\xa0so"),
        ("in\u200bvis\ufeffible soft\u00adness", "invisible softness"),
        ("&#8203;", ""),
    ],
)
def test_what_was_meant_comes_back(damaged: str, meant: str) -> None:
    assert repair(damaged) == meant


@pytest.mark.parametrize(
    "text",
    [
        "« QUALITÉ»",
        "Ã",
        "R&D; AT&T",
        "&unknown; stays",
        "if a && b;",
        "naïve Ærøskøbing",
        "می\u200cخواهم",
        "👩\u200d🔬",
        "½ × ¾",
    ],
)
def test_what_may_be_meant_stays(text: str) -> None:
    assert repair(text) == text


@given(st.text(alphabet=st.sampled_from("aé&amp;#39lt Ã©â€™Â£\u200b\xa0«»ß"), max_size=30))
def test_mending_twice_changes_nothing(text: str) -> None:
    assert repair(repair(text)) == repair(text)


def test_only_damaged_texts_of_a_column_change() -> None:
    texts = pa.array(["plain", "cafÃ©", None, "a &amp; b"], pa.large_string())
    better, places = repaired(texts)
    assert better.to_pylist() == ["plain", "café", None, "a & b"]
    assert places.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        ("mojibake", "a cafÃ© there", "'cafÃ©' for 'café'"),
        ("html-entities", "fish&amp;chips", "'fish&amp;chips' for 'fish&chips'"),
        ("zero-width", "in\u200bvisible", "'in\\u200bvisible' for 'invisible'"),
    ],
)
def test_the_audit_shows_an_example_and_repaired_texts_have_none(kind: str, text: str, told: str) -> None:
    rows = table([*labelled(40), (f"{text} 1", "bad"), (f"{text} 2", "good")])
    (finding,) = found(audit(load(rows)), kind)
    assert told in finding.message
    assert finding.count == 2
    examples = load(rows, repair=("text",))
    assert not any(found(audit(examples), each) for each in DAMAGES)
    assert examples.origin["repaired"] == {"train": {"rows": 2, "first": [41, 42]}}


def test_a_text_that_is_mended_to_nothing_is_empty() -> None:
    rows = table([*labelled(40), ("\u200b", "bad")])
    assert load(rows, repair=("text",), drop=("empty",)).origin["dropped"]["train"]["empty"]["first"] == [41]


def test_texts_are_mended_before_they_are_compared() -> None:
    rows = table([*labelled(40), ("one café two three", "bad"), ("one cafÃ© two three", "bad")])
    assert "dropped" in load(rows, repair=("text",), drop=("duplicate",)).origin
    assert load(rows, repair=("text",), drop=("duplicate",)).origin["dropped"]["train"]["duplicate"]["first"] == [42]
