"""The audit: problems in the examples, found before training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from whet.config import DROPS, DataConfig
from whet.data.audit.columns import SplitColumns, load_columns
from whet.data.audit.duplicates import DuplicateIndex, find_duplicates
from whet.data.dropping import counted_by_rule
from whet.data.examples import Examples
from whet.data.text_repair import DAMAGES
from whet.errors import DataError, UsageError, nearest, shortened_list
from whet.task import Task

VERSION = 1
SEVERITIES = ERROR, WARNING, NOTE = "error", "warning", "note"
CODES = {
    "leak": "texts of the training split that also stand in another one",
    "conflict": "the same text under different labels",
    "duplicate": "the same text more than once in a split",
    "near-leak": "texts that are almost those of the training split",
    "near-duplicate": "texts of a split that are almost the same",
    "label-spelling": "labels that differ only by case or blanks",
    "imbalance": "labels with very different numbers of rows",
    "unmeasured-label": "labels that training has and a split that measures has not",
    "giveaway": "something other than the meaning of the text that settles the label",
    "unknown-tokens": "text that the model's tokenizer has no tokens for",
    "too-long": "texts that are longer than the model reads",
    "same-tokens": "different texts that are the same to the model",
    "unlabelled": "rows without a label",
    "unseen-label": "test labels that training never saw",
    "mojibake": "texts in UTF-8 that were read as Latin-1",
    "html-entities": "characters that are written as in HTML",
    "zero-width": "characters that take no room",
    "dropped": "rows left out by --drop",
    "surrogate": "halves of characters that were replaced",
}
VALIDATION_LEAK_LIMIT = 0.05
"""Published validation sets repeat a few training texts; above this share the score is misleading."""
IMBALANCE = 10
SMALL_CLASS = 10
GIVEAWAY_ROWS = 50_000
MAX_LISTED = 20
"""Labels that a message lists; the others are counted. `whet check --json` has all of them."""
Place = tuple[str, int]


@dataclass(frozen=True)
class Finding:
    """A problem, or a fact worth knowing."""

    severity: str
    code: str
    count: int
    message: str
    advice: str = ""
    rows: tuple[Place, ...] = ()
    """Up to five examples: split and row."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "severity": self.severity,
            "code": self.code,
            "count": self.count,
            "message": self.message,
            "advice": self.advice,
            "rows": [{"split": split, "row": row} for split, row in self.rows],
        }


@dataclass(frozen=True)
class Audit:
    """Facts about the examples, and the findings."""

    source: str
    task: Task
    splits: dict[str, dict[str, Any]]
    """By split: rows, unlabelled, labels (name to count, or the range of a regression), words."""
    findings: tuple[Finding, ...]
    overlap: dict[str, float] = field(default_factory=dict)
    """Share of each other split's rows whose text is also in the training split."""
    tokens: dict[str, Any] = field(default_factory=dict)
    """The tokenizer's facts about the texts (`with_tokens`); empty without a tokenizer."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == ERROR)

    def stop_unless_allowed(self, config: DataConfig | None = None) -> None:
        """Raise for errors in the data, unless the user allowed them by name."""
        config = config or DataConfig()
        allowed = set(config.allow)
        for name in sorted(allowed - set(CODES)):
            raise UsageError(f"--allow is {name!r}, which is no finding of the audit.", nearest(name, CODES))
        for finding in self.errors:
            if finding.code not in allowed:
                mends = finding.code in DROPS
                hint = f"{finding.advice} Or let it stand: --allow {finding.code}."
                raise DataError(finding.message, hint, go_on=config.dropping(finding.code) if mends else ())

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "source": self.source,
            "task": self.task.kind,
            "labels": list(self.task.labels),
            "splits": self.splits,
            "overlap": self.overlap,
            "tokens": self.tokens,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def audit(examples: Examples) -> Audit:
    """Check every row of every split once, without a model or a tokenizer."""
    splits = {name: load_columns(name, split, examples.task) for name, split in examples.rows.items()}
    same = find_duplicates(splits)
    checks: list[Callable[[], Iterable[Finding]]] = [
        lambda: _leaks(same, examples.origin["splits"]),
        lambda: _conflicts(same, examples.task),
        lambda: _imbalance(splits, examples.task),
        lambda: _unmeasured(splits, examples),
        lambda: _spelling(examples, splits),
        lambda: _giveaways(splits, examples),
        lambda: _duplicates(same),
        lambda: _near_duplicates(splits),
        lambda: _unlabelled(splits, examples),
        lambda: _damaged(splits),
        lambda: _losses(examples.origin),
    ]
    findings = [finding for check in checks for finding in check()]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Audit(
        examples.origin["source"],
        examples.task,
        {name: split.summary(examples.task) for name, split in splits.items()},
        tuple(findings),
        _overlap(same),
    )


def _overlap(same: DuplicateIndex) -> dict[str, float]:
    names = [split.name for split in same.splits]
    if "train" not in names:
        return {}
    train = names.index("train")
    return {
        split.name: len(same.rows_also_in(train, place)) / max(len(split), 1)
        for place, split in enumerate(same.splits)
        if place != train
    }


def _leaks(same: DuplicateIndex, came: Mapping[str, str]) -> Iterable[Finding]:
    for first, one in enumerate(same.splits):
        for second, other in enumerate(same.splits):
            shared = same.rows_also_in(first, second) if first < second else ()
            if not len(shared):
                continue
            share = len(shared) / len(other)
            # Validation rows that whet split off come from the user's training file, so their overlap with test counts.
            of_training = one.name == "train" or (came[one.name] == "made" and came[other.name] == "given")
            grave = of_training and (other.name == "test" or share > VALIDATION_LEAK_LIMIT)
            yield Finding(
                ERROR if grave else WARNING,
                "leak",
                len(shared),
                f"A text of {one.name} also occurs in {len(shared):,} of {len(other):,} {other.name} rows "
                f"({share:.1%}).",
                f"Take them out of {one.name} or {other.name}: a score on texts seen in training means little.",
                other.places(shared),
            )


def _conflicts(same: DuplicateIndex, task: Task) -> Iterable[Finding]:
    """Find equal texts with different labels, within and across splits."""
    texts, found = same.conflicts(task)
    if texts:
        rows = len(found)
        what = "labels that are far apart" if task.kind == "regression" else "different labels"
        yield Finding(
            WARNING,
            "conflict",
            rows,
            f"{texts:,} {'text' if texts == 1 else 'texts'} in {rows:,} rows {'has' if texts == 1 else 'have'} {what}.",
            "Decide which label is right: the model cannot learn both.",
            tuple(same.place(row) for row in found[:5]),
        )


def _rows(indices: Any, split: str) -> str:
    return f"1 {split} row" if len(indices) == 1 else f"{len(indices):,} {split} rows"


def _duplicates(same: DuplicateIndex) -> Iterable[Finding]:
    for place, split in enumerate(same.splits):
        again = same.repetitions(place)
        if len(again):
            share = len(again) / len(split)
            yield Finding(
                WARNING if share > 0.01 else NOTE,
                "duplicate",
                len(again),
                f"A text comes again in {_rows(again, split.name)} ({share:.1%}).",
                "Remove them unless they are meant to count more than once.",
                split.places(again),
            )


def _near_duplicates(splits: Mapping[str, SplitColumns]) -> Iterable[Finding]:
    """Find near-duplicates: a note within a split, a warning between training and another split."""
    import numpy as np

    from whet.data.audit.near_duplicates import NearPairs

    near = NearPairs.of(splits)
    names = list(splits)
    sizes = {name: split.head.num_rows for name, split in splits.items()}
    cut = [f"{sizes[name]:,} {name}" for name, split in splits.items() if sizes[name] < len(split)]
    scope = f" (among the first {' and '.join(cut)} rows)" if cut else ""
    kept = "Look at a few: they add little, and count double where they repeat a mistake."
    checks = [(NOTE, "near-duplicate", name, name, "an earlier text", kept) for name in names]
    if names[0] == "train":
        leaked = "Look at a few: if they are copies, the score is too good."
        checks += [(WARNING, "near-leak", "train", name, "a training text", leaked) for name in names[1:]]
    for level, code, earlier, name, what, hint in checks:
        later = np.unique(near.between(earlier, name)[:, 1])
        if len(later):
            message = f"Almost the same as {what}: {_rows(later, name)}{scope}."
            yield Finding(level, code, len(later), message, hint, splits[name].places(later))


def _spelling(examples: Examples, splits: Mapping[str, SplitColumns]) -> Iterable[Finding]:
    alike: dict[str, list[str]] = {}
    unseen = examples.origin.get("unseen_labels", {})
    names = [*examples.task.labels, *(label for labels in unseen.values() for label in labels)]
    for name in dict.fromkeys(names):
        alike.setdefault(" ".join(name.casefold().split()), []).append(name)
    groups = [group for group in alike.values() if len(group) > 1]
    if groups:
        listed = "; ".join(" and ".join(map(repr, group)) for group in groups[:5])
        yield Finding(
            WARNING,
            "label-spelling",
            len(groups),
            f"Labels differ only by case or blanks: {listed}.",
            "Write them alike, or they are learned as different labels.",
        )


def _imbalance(splits: Mapping[str, SplitColumns], task: Task) -> Iterable[Finding]:
    train = splits.get("train")
    if train is None or task.kind not in ("binary", "multiclass", "multilabel"):
        return
    counts = train.label_counts(task)
    most, least = max(counts, key=lambda n: counts[n]), min(counts, key=lambda n: counts[n])
    if counts[most] >= IMBALANCE * max(counts[least], 1):
        yield Finding(
            WARNING,
            "imbalance",
            counts[least],
            f"{most!r} has {counts[most]:,} training rows and {least!r} has {counts[least]:,}.",
            "Look at macro-averaged scores, and try --class-weights balanced.",
        )
    small = [name for name, count in counts.items() if count < SMALL_CLASS]
    if small and counts[most] >= 2 * SMALL_CLASS:
        yield Finding(
            NOTE,
            "imbalance",
            len(small),
            f"{len(small)} of {len(counts)} labels have fewer than {SMALL_CLASS} training rows: "
            f"{', '.join(map(repr, small[:5]))}.",
            "Add rows for them, or join labels that belong together.",
        )


def _unmeasured(splits: Mapping[str, SplitColumns], examples: Examples) -> Iterable[Finding]:
    """Find labels without evaluation rows: in made splits, those with too few texts, which are all used for
    training."""
    held = splits["train"].label_counts(examples.task) if "train" in splits else {}
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, split in splits.items():
        counts = split.label_counts(examples.task)
        missing = tuple(label for label, count in held.items() if count and not counts.get(label))
        if name != "train" and missing and split.has_label.any():
            alike.setdefault(missing, []).append(name)
    for missing, names in alike.items():
        made = all(examples.origin["splits"][name] == "made" for name in names)
        why = "too few different texts to be split, and " if made else ""
        listed = shortened_list([f"{label!r} ({held[label]:,})" for label in missing], MAX_LISTED, quoted=False)
        yield Finding(
            WARNING,
            "unmeasured-label",
            len(missing),
            f"{len(missing):,} of {len(held):,} labels have {why}no {' or '.join(names)} row: {listed}.",
            "They are trained on, and no score says how well. Add rows, leave the labels out (--min-rows), or merge "
            "them (--rare other).",
        )


def _giveaways(splits: Mapping[str, SplitColumns], examples: Examples) -> Iterable[Finding]:
    from whet.data.audit.shortcuts import telling_ends, telling_words

    for column in examples.origin.get("telling_columns", ()):
        yield Finding(
            NOTE,
            "giveaway",
            1,
            f"The column {column!r} settles the label; the model does not read it.",
            "Keep it out of the text.",
        )
    train = splits.get("train")
    if train is None or train.labels is None or examples.task.kind not in ("binary", "multiclass"):
        return
    rows = min(train.head.num_rows, GIVEAWAY_ROWS)
    texts, labels = train.normalised("text", rows), train.labels[:rows]
    advice = "Remove it from the texts, if it will not be there later: the model needs nothing else."
    for label, word in telling_words(texts, labels, examples.task).items():
        message = f"Nearly all texts of {label!r}, and nearly no others, hold {word!r}."
        yield Finding(WARNING, "giveaway", int((labels == examples.task.labels.index(label)).sum()), message, advice)
    for column in ("text", "pair") if examples.pairs else ("text",):
        for end in telling_ends(train.normalised(column, rows), labels):
            message = f"The {end} word of the {column} settles the label in all of {rows:,} training rows."
            yield Finding(WARNING, "giveaway", len(labels), message, advice)


def _unlabelled(splits: Mapping[str, SplitColumns], examples: Examples) -> Iterable[Finding]:
    import numpy as np

    for name, unseen in examples.origin.get("unseen_labels", {}).items():
        count = sum(unseen.values())
        listed = ", ".join(f"{label!r} ({number})" for label, number in list(unseen.items())[:5])
        yield Finding(
            WARNING,
            "unseen-label",
            count,
            f"Labels of {name} that training never saw: {listed}.",
            "They are not scored. Correct them, or add training rows with them.",
        )
    for name, split in splits.items():
        missing = np.flatnonzero(~split.has_label)
        if len(missing) and examples.task.kind != "unlabelled":
            yield Finding(
                NOTE,
                "unlabelled",
                len(missing),
                f"No label that could be scored: {_rows(missing, name)}.",
                "",
                split.places(missing),
            )


def _damaged(splits: Mapping[str, SplitColumns]) -> Iterable[Finding]:
    for kind, what in DAMAGES.items():
        found = {name: split.damage[kind] for name, split in splits.items() if kind in split.damage}
        if not found:
            continue
        count = sum(len(damage.rows) for damage in found.values())
        share = count / sum(map(len, splits.values()))
        before, after = next(iter(found.values())).example
        yield Finding(
            WARNING if kind == "mojibake" or share > 0.01 else NOTE,
            kind,
            count,
            f"{what}: {count:,} {'row' if count == 1 else 'rows'}, such as {before!r} for {after!r}.",
            "Mend the texts: --repair text.",
            tuple((name, row) for name, damage in found.items() for row in sorted(damage.rows)[:5])[:5],
        )


def _losses(origin: Mapping[str, Any]) -> Iterable[Finding]:
    left_out = origin.get("dropped", {})
    if count := sum(rows["rows"] for rules in left_out.values() for rows in rules.values()):
        first = [(split, row) for split, rules in left_out.items() for rows in rules.values() for row in rows["first"]]
        yield Finding(NOTE, "dropped", count, f"Left out by --drop: {counted_by_rule(left_out)}.", "", tuple(first[:5]))
    if count := origin.get("surrogates", 0):
        message = f"Halves of characters (lone surrogates) that were replaced by U+FFFD: {count:,}."
        yield Finding(WARNING, "surrogate", count, message, "Look at how the file was written.")
