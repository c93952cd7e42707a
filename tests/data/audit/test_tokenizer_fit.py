from __future__ import annotations

import pytest

from tests.data.audit.test_audit import found, labelled, load, table
from whet.config import DataConfig
from whet.data.audit.audit import Audit, audit
from whet.data.audit.tokenizer_fit import with_tokens
from whet.data.tokens.facts import TokenFacts
from whet.errors import DataError


def read(**counts: int) -> Audit:
    facts = TokenFacts(**{"rows": 80, "tokens": 1000, **counts})
    return with_tokens(audit(load(table(labelled(100)))), {"train": facts}, "minilm", 512)


@pytest.mark.parametrize(("unknown", "severity"), [(29, None), (30, "warning"), (499, "warning"), (500, "error")])
def test_unknown_tokens_warn_from_a_few_percent_and_stop_from_half(unknown: int, severity: str | None) -> None:
    assert [each.severity for each in found(read(unknown=unknown), "unknown-tokens")] == [severity] * bool(severity)


def test_rows_of_nothing_but_unknown_tokens_stop() -> None:
    report = read(unknown=100, unknown_rows=40)
    with pytest.raises(
        DataError, match=r"10% of the tokens are unknown to 'minilm'.*40 of 80 rows are nothing else"
    ) as e:
        report.stop_unless_allowed()
    assert "--model intfloat/multilingual-e5-small, or a local folder" in str(e.value.hint)
    report.stop_unless_allowed(DataConfig(allow=("unknown-tokens",)))


def test_texts_that_are_cut_say_how_much_is_not_read() -> None:
    finding = found(read(cut_rows=60, cut_tokens=5000), "too-long")[0]
    assert finding.severity == "warning"
    assert "More than 512 tokens, and cut: 60 train rows (75.0%); 83% of the text is not read" in finding.message
    assert finding.message.endswith("(--long windows).")


def test_one_row_that_is_cut_a_little_is_a_note() -> None:
    assert found(read(cut_rows=1, cut_tokens=1), "too-long")[0].severity == "note"


def test_texts_that_become_equal_are_said() -> None:
    finding = found(read(same=5, same_places=(3, 4)), "same-tokens")[0]
    assert (finding.severity, finding.count, finding.rows) == ("warning", 5, (("train", 3), ("train", 4)))


def test_tokens_a_word_are_measured() -> None:
    report = read()
    words = report.splits["train"]["words"]["text"]["mean"]
    assert report.tokens["splits"]["train"]["per_word"] == pytest.approx(1000 / 80 / words, abs=0.01)
