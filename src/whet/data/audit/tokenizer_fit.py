"""The audit's checks of a tokenizer: text that it cannot represent, does not reach or cannot distinguish."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from whet.data.audit.audit import ERROR, NOTE, SEVERITIES, WARNING, Audit, Finding
from whet.data.tokens.facts import TokenFacts
from whet.data.tokens.pieces import Long
from whet.records import FEW_UNKNOWN, MUCH_UNREAD

MAX_UNKNOWN = 0.5
OFTEN_CUT = 0.1
OFTEN_SAME = 0.01
MULTILINGUAL = "intfloat/multilingual-e5-small"


def with_tokens(
    report: Audit, facts: Mapping[str, TokenFacts], model: str, max_length: int, long: Long = "head"
) -> Audit:
    """Return the audit with the tokenizer's findings."""
    splits = {}
    for name, counts in facts.items():
        means = [words.get("mean", 0.0) for words in report.splits[name]["words"].values()]
        splits[name] = counts.as_dict(sum(means))
    total, strange = sum(counts.tokens for counts in facts.values()), sum(counts.unknown for counts in facts.values())
    cut = sum(counts.cut_tokens for counts in facts.values())
    findings = [*report.findings, *_unknown(facts, model), *_too_long(facts, max_length), *_same(facts, model)]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    tokens = {
        "model": model,
        "max_length": max_length,
        "long": long,
        "unknown": round(strange / max(total, 1), 4),
        "unread": round(cut / max(cut + total, 1), 4),
        "splits": splits,
    }
    return dataclasses.replace(report, findings=tuple(findings), tokens=tokens)


def _scope(facts: Iterable[TokenFacts]) -> str:
    return " (in a sample of the rows)" if any(counts.sampled for counts in facts) else ""


def _unknown(facts: Mapping[str, TokenFacts], model: str) -> Iterable[Finding]:
    """Check all splits together: the writing is that of the source."""
    every = facts.values()
    tokens, unknown = sum(counts.tokens for counts in every), sum(counts.unknown for counts in every)
    rows, empty = sum(counts.rows for counts in every), sum(counts.unknown_rows for counts in every)
    share = unknown / max(tokens, 1)
    if share < FEW_UNKNOWN:
        return
    grave = share >= MAX_UNKNOWN or empty >= MAX_UNKNOWN * rows
    nothing = f"; {empty:,} of {rows:,} rows are nothing else" if empty else ""
    yield Finding(
        ERROR if grave else WARNING,
        "unknown-tokens",
        unknown,
        f"{share:.0%} of the tokens are unknown to {model!r}, which has none for this writing{nothing}{_scope(every)}.",
        f"Choose a model that knows it: --model {MULTILINGUAL}, or a local folder.",
    )


def _too_long(facts: Mapping[str, TokenFacts], max_length: int) -> Iterable[Finding]:
    for name, counts in facts.items():
        if counts.window_rows:
            yield _in_windows(name, counts, max_length)
        if not counts.cut_rows:
            continue
        share = counts.cut_rows / counts.rows
        rows = _rows(counts.cut_rows, name)
        yield Finding(
            WARNING if share > OFTEN_CUT or counts.unread > MUCH_UNREAD else NOTE,
            "too-long",
            counts.cut_rows,
            f"More than {max_length} tokens, and cut: {rows} ({share:.1%}){_scope([counts])}; "
            f"{_percent(counts.unread)} of the text is not read (--long windows).",
            "Read all of it: --long windows. Or raise --max-length, if the model can read more.",
        )


def _in_windows(name: str, counts: TokenFacts, max_length: int) -> Finding:
    share, rows = counts.window_rows / counts.rows, _rows(counts.window_rows, name)
    return Finding(
        NOTE,
        "too-long",
        counts.window_rows,
        f"More than {max_length} tokens, and read in {counts.windows:,} windows: "
        f"{rows} ({share:.1%}){_scope([counts])}.",
        "Reading and training take as much longer as there are more windows than rows.",
    )


def _rows(count: int, split: str) -> str:
    return f"1 {split} row" if count == 1 else f"{count:,} {split} rows"


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.2%}"


def _same(facts: Mapping[str, TokenFacts], model: str) -> Iterable[Finding]:
    count, rows = sum(counts.same for counts in facts.values()), sum(counts.rows for counts in facts.values())
    if not count:
        return
    places = tuple((name, row) for name, counts in facts.items() for row in counts.same_places)
    yield Finding(
        WARNING if count > OFTEN_SAME * rows else NOTE,
        "same-tokens",
        count,
        f"{count:,} texts differ from another one of their split only in what {model!r} does not read"
        f"{_scope(facts.values())}: their tokens are the same.",
        "Look at a few: what differs is unknown to the model, or cut off.",
        places[:5],
    )
