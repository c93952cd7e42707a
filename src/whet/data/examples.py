"""load_examples: turns any source into splits of texts and labels on disk, cached by content."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.config import DataConfig
from whet.data.audit.shortcuts import shortcut_columns
from whet.data.cache import fingerprint, get_or_build
from whet.data.columns import Columns, choose_columns, column_kind, label_columns, own_name, passed_over, profile
from whet.data.dropping import LISTED, Cleaning, summary_lines, without_dropped
from whet.data.example_files import SplitRows
from whet.data.label_reader import LabelReader
from whet.data.labels import labels_of_task, understand_labels
from whet.data.rare_labels import for_known_labels, without_rare
from whet.data.readers.raw_table import RawSplit
from whet.data.readers.source import Source, find_source, read_source
from whet.data.reviewed_labels import Decision, ReviewedLabels, decisions_of
from whet.data.source_digests import digests
from whet.data.split_writer import SplitWriter, write_made_splits
from whet.errors import DataError, shortened_list
from whet.task import Task
from whet.utils.text import Echo, neutral

VERSION = 3
"""Part of the cache key: increased if the same source would give other examples."""
ORDER = ("train", "validation", "test")
_SAYING = "examples.json"


@dataclass(frozen=True)
class Examples:
    """Texts and labels, ready to be audited, tokenized and trained on."""

    rows: dict[str, SplitRows]
    task: Task
    columns: Columns
    origin: dict[str, Any]
    fingerprint: str
    messages: tuple[str, ...]
    dropped: Path | None = None
    """The file that lists the rows left out."""

    @functools.cached_property
    def splits(self) -> Any:
        """Return the same rows as a datasets.DatasetDict."""
        import datasets

        return datasets.DatasetDict(
            {name: datasets.Dataset.from_file(str(rows.file)) for name, rows in self.rows.items()}
        )

    @property
    def pairs(self) -> bool:
        return self.columns.pair is not None


def load_examples(
    source: Any,
    config: DataConfig | None = None,
    *,
    labelled: bool = True,
    task: Task | None = None,
    whole_below: int = 0,
    echo: Echo = lambda line: None,
) -> Examples:
    """Return the examples of any source.

    Without validation rows, fewer training rows than `whole_below` are not split: they are for folds.

    With `labelled=False` no label is needed, nothing is split, and a single file becomes the split `test`. With the
    `task` of a trained model, a label column is read in that task's order. `echo` gets a line about a damaged cache
    entry, which is built again from the source.
    """
    config = config or DataConfig()
    with tempfile.TemporaryDirectory(prefix="whet-") as spool:
        found = find_source(source, config, Path(spool))
        more: list[Any] = [whole_below] if whole_below else []
        decisions = decisions_of(config, labelled, Path(spool))
        if decisions is not None:
            more.append([config.labels_from, *([row, *vars(each).values()] for row, each in decisions.items())])
        key = fingerprint(VERSION, _settings(config), digests(found, config), labelled, _task_key(task), *more)

        def build(folder: Path) -> None:
            _Builder(found, config, folder, labelled, task, whole_below, decisions).build()

        return _open(get_or_build("examples", key, build, note=found.name, echo=echo))


def _settings(config: DataConfig) -> dict[str, Any]:
    """Return the settings that change the examples: not the paths, and not the allowed findings."""
    settings = dataclasses.asdict(config)
    for name in ("source", "validation", "test", "allow", "folds", "drop", "drop_empty", "labels_from"):
        settings.pop(name)
    return {**settings, "drops": config.drops}


def _task_key(task: Task | None) -> list[Any]:
    return [] if task is None else [task.kind, *task.labels]


class _Builder:
    """Reads a source once and writes its examples into a folder."""

    def __init__(
        self,
        found: Source,
        config: DataConfig,
        folder: Path,
        labelled: bool,
        task: Task | None,
        whole_below: int = 0,
        decisions: Mapping[int, Decision] | None = None,
    ) -> None:
        self.whole_below = whole_below
        self.found, self.config, self.folder = found, config, folder
        self.labelled, self.task = labelled, task
        self.decisions = decisions
        self.reviewed: ReviewedLabels | None = None
        self.messages: list[str] = list(found.notes)
        self.telling: list[str] = []

    def build(self) -> None:
        scratch = self.folder / "scratch"
        scratch.mkdir()
        raw = self._splits(read_source(self.found, self.config, scratch))
        self._note_files(raw)
        source_rows = raw["train"].rows if "train" in raw else 0
        first = raw.get("train") or next(iter(raw.values()))
        want_label = self.labelled or self.task is not None
        columns, raw = self._columns_anywhere(first, raw, want_label)
        first = raw.get("train") or next(iter(raw.values()))
        self._check_columns(raw, columns)
        cleaning = Cleaning({}, {})
        if self.config.drops or self.config.repair:
            raw, cleaning = self._clean(raw, columns, scratch)
        reader = self._reader(raw, columns)
        if self.labelled and reader is not None:
            self.telling = shortcut_columns(first, columns, reader)
        if self.decisions is not None and reader is not None:
            self.reviewed = ReviewedLabels.of(Path(str(self.config.labels_from)), self.decisions, reader)
        writers = self._write(raw, columns, reader, scratch)
        self._check(raw, writers, reader, lambda: self._rules_that_go_on(raw, columns, reader, scratch))
        if self.reviewed is not None and reader is not None:
            self.reviewed.refuse_missing(source_rows)
            self.messages.append(self.reviewed.summary(reader.task.labels)[0])
        shutil.rmtree(scratch)
        self._note_loss(raw, writers)
        self.messages += summary_lines(cleaning.as_dict())
        saying = {
            "task": dataclasses.asdict(reader.task if reader else Task("unlabelled", ())),
            "columns": dataclasses.asdict(columns),
            "origin": {**self._origin(raw, writers, reader), **cleaning.as_dict()},
            "fingerprint": fingerprint(*([name, writer.digest()] for name, writer in writers.items())),
            "said": self.messages,
            "splits": list(writers),
        }
        text = json.dumps(saying, indent=1)  # as ASCII: file names need not be valid text
        (self.folder / _SAYING).write_text(text, encoding="utf-8")

    def _rules_that_go_on(
        self, raw: dict[str, RawSplit], columns: Columns, reader: LabelReader | None, scratch: Path
    ) -> Sequence[str]:
        """The flag for all that would be refused one after another: rows without a text or a label, and leaks."""
        if not self.labelled:
            return ("--drop-empty",)
        config = dataclasses.replace(self.config, drop=("empty", "unlabelled", "leak"))
        try:
            _, cleaning = without_dropped(raw, columns, reader, config, scratch, for_training=True)
        except DataError:
            return self.config.dropping("empty", "unlabelled")
        found = {rule for rules in cleaning.dropped.values() for rule in rules}
        return self.config.dropping(*(rule for rule in config.drops if rule in found))

    def _clean(self, raw: dict[str, RawSplit], columns: Columns, scratch: Path) -> tuple[dict[str, RawSplit], Cleaning]:
        """Leave out the rows of --drop before labels are counted and splits are made."""
        reader = self._plain_reader(raw, columns)
        left, cleaning = without_dropped(raw, columns, reader, self.config, scratch, for_training=self.labelled)
        if self.labelled and reader is not None and (strange := reader.unseen.get("validation")):
            raise _unseen(raw["validation"], strange, reader)
        cleaning.write(self.folder / LISTED, raw)
        return left, cleaning

    def _splits(self, raw: dict[str, RawSplit]) -> dict[str, RawSplit]:
        """Return the used splits, in order."""
        if not self.labelled:
            return {"test": raw["train"]} if list(raw) == ["train"] else raw
        if "train" not in raw:
            raise DataError(f"there is no training split in {self.found.name!r}.", f"Splits found: {', '.join(raw)}.")
        for name in raw:
            if name not in ORDER:
                self.messages.append(f"The split {name!r} is left out: it is neither train, validation nor test.")
        return {name: raw[name] for name in ORDER if name in raw}

    def _note_files(self, raw: dict[str, RawSplit]) -> None:
        """Note how the files were read; files in the same format share a line."""
        alike: dict[str, list[str]] = {}
        for split in raw.values():
            for note in split.notes:
                alike.setdefault(note, []).extend(part.file for part in split.parts)
        for note, files in alike.items():
            names = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
            self.messages.append(f"{names}: {note}")

    def _columns_anywhere(
        self, first: RawSplit, raw: dict[str, RawSplit], want_label: bool
    ) -> tuple[Columns, dict[str, RawSplit]]:
        """Return the columns of the rows, or of the contents of their objects if only those fit."""
        try:
            return self._columns(first, want_label), raw
        except DataError as error:
            inside = {name: split.unfolded for name, split in raw.items() if split.unfolded is not None}
            if first.unfolded is None or len(inside) < len(raw):
                raise
            try:
                return self._columns(first.unfolded, want_label), inside
            except DataError:
                raise error from None

    def _columns(self, first: RawSplit, want_label: bool) -> Columns:
        if self.labelled or not want_label:
            return choose_columns(first, self.config, labelled=self.labelled)
        config = self.config
        if config.label is None and self.task is not None and self.task.kind == "multilabel":
            own = [own_name(label, first.columns) for label in self.task.labels]
            if all(own):  # one 0/1 column per label, with the names that the model knows
                config = dataclasses.replace(config, label=",".join(map(str, own)))
        try:
            return choose_columns(first, config, labelled=True)
        except DataError:
            if config.label is not None:
                raise
            return choose_columns(first, self.config, labelled=False)

    def _plain_reader(self, raw: dict[str, RawSplit], columns: Columns) -> LabelReader | None:
        """Return the reader of the labels, without the rules for rare ones."""
        if columns.label is None or (not self.labelled and self.task is None):
            return None
        if self.labelled:
            return understand_labels(raw, columns, self.config)
        assert self.task is not None
        first = next(iter(raw.values()))
        return for_known_labels(labels_of_task(first, columns.label, self.task, self.config), self.config)

    def _reader(self, raw: dict[str, RawSplit], columns: Columns) -> LabelReader | None:
        texts = f"text {columns.text!r}" + (f", pair {columns.pair!r}" if columns.pair else "")
        flags = "--text --pair"
        reader, rare = self._plain_reader(raw, columns), ""
        if reader is None or columns.label is None:
            self.messages.append(f"Columns: {texts} ({flags}).")
            return None
        first = next(iter(raw.values()))
        if self.labelled:
            reader, rare = without_rare(reader, raw["train"], self.config)
        labels = " / ".join(map(neutral, reader.task.labels[:6])) + (" / …" if len(reader.task.labels) > 6 else "")
        what = f"{reader.task.kind}, {labels}" if labels else reader.task.kind
        note = f" ({reader.note})" if reader.note else ""
        names = label_columns(first, columns.label)
        given = repr(columns.label) if len(names) <= 8 else f"in {len(names)} columns, {shortened_list(names, 3)}"
        self.messages.append(f"Columns: {texts}, label {given}: {what}{note} ({flags} --label --task).")
        if rare:
            self.messages.append(rare)
        if self.config.label is None and (sentence := passed_over(profile(first), columns.label)):
            self.messages.append(sentence)
        return reader

    def _check_columns(self, raw: dict[str, RawSplit], columns: Columns) -> None:
        for name, split in raw.items():
            needed = [*columns.texts]
            if columns.label is not None and not (name == "test" and columns.label not in split.columns):
                needed += label_columns(split, columns.label)
            for column in needed:
                if column not in split.columns:
                    raise split.error(
                        f"the {name} split has no column {column!r}.", f"Columns: {', '.join(split.columns)}."
                    )
            for column in columns.texts:
                kind = column_kind(split.schema.field(column).type)
                if kind != "text":
                    raise split.error(f"the column holds {_SPOKEN[kind]}, not text.", column=column)

    def _write(
        self, raw: dict[str, RawSplit], columns: Columns, reader: LabelReader | None, scratch: Path
    ) -> dict[str, SplitWriter]:
        shares = {
            "validation": 0.0 if "validation" in raw else self.config.validation_share,
            "test": 0.0 if "test" in raw or "validation" in raw else self.config.test_share,
        }
        made = [name for name, share in shares.items() if share > 0]
        if "validation" not in raw and "train" in raw and raw["train"].rows < self.whole_below:
            made = []
        writers: dict[str, SplitWriter] = {}
        for name, split in raw.items():
            if name == "train" and self.labelled and made and reader is not None:
                parts, line = write_made_splits(
                    split, columns, reader, self.config, self.folder, scratch, shares, self.reviewed
                )
                self.messages.append(line)
                writers.update(parts)
            else:
                writer = SplitWriter(self.folder / f"{name}.arrow", name, columns, self.config)
                writer.reviewed = self.reviewed if name == "train" else None
                writer.write_all(split, reader)
                writers[name] = writer
        order = [*ORDER, *(name for name in writers if name not in ORDER)]
        return {name: writers[name] for name in order if name in writers}

    def _check(
        self,
        raw: dict[str, RawSplit],
        writers: dict[str, SplitWriter],
        reader: LabelReader | None,
        rules: Callable[[], Sequence[str]],
    ) -> None:
        """Refuse empty texts, rows without a label, and labels without training rows.

        `rules` returns the flag that leaves such rows out.
        """
        for name, writer in writers.items():
            origin = raw.get(name, raw.get("train", next(iter(raw.values()))))
            if writer.empty or not writer.rows:
                raise writer.without_text(origin, rules() if writer.empty else ())
            if not self.labelled or reader is None:
                continue
            if name == "validation" and name in raw:
                _refuse_unseen(origin, writer, writers["train"], reader)
            if name != "test" and writer.unlabelled:
                count = "1 row has" if writer.unlabelled == 1 else f"{writer.unlabelled} rows have"
                none = _NONE.get(reader.task.kind, ".")
                raise origin.error(
                    f"{count} no label in the {name} split.",
                    f"Leave them out with --drop unlabelled, or put them in a test file{none}",
                    row=writer.first_unlabelled,
                    column=reader.column,
                    go_on=rules(),
                )

    def _note_loss(self, raw: dict[str, RawSplit], writers: dict[str, SplitWriter]) -> None:
        surrogates = sum(split.surrogates for split in raw.values())
        if surrogates:
            self.messages.append(f"{surrogates} lone surrogates were replaced by U+FFFD: they are not characters.")

    def _origin(
        self, raw: dict[str, RawSplit], writers: dict[str, SplitWriter], reader: LabelReader | None
    ) -> dict[str, Any]:
        unseen: dict[str, Counter[str]] = reader.unseen if reader else {}
        return {
            "source": self.found.name,
            "kind": self.found.kind,
            "files": [
                {"split": name, "file": part.file, "rows": part.rows, "bytes": part.bytes}
                for name, split in raw.items()
                for part in split.parts
            ],
            "splits": {name: ("given" if name in raw else "made") for name in writers},
            "split_seed": self.config.split_seed if len(writers) > len(raw) else None,
            "rows": {name: writer.rows for name, writer in writers.items()},
            "surrogates": sum(split.surrogates for split in raw.values()),
            "unlabelled": {name: w.unlabelled for name, w in writers.items() if w.unlabelled},
            "telling_columns": self.telling,
            "rare_labels": dict(reader.rare) if reader else {},
            "rare_rows": {name: w.rare for name, w in writers.items() if w.rare},
            "unseen_labels": {name: dict(counts.most_common(20)) for name, counts in unseen.items()},
            "unseen_rows": dict(reader.unseen_rows) if reader else {},
            "reviewed_labels": self.reviewed.summary(reader.task.labels)[1] if self.reviewed and reader else {},
        }


def _refuse_unseen(origin: RawSplit, validation: SplitWriter, train: SplitWriter, reader: LabelReader) -> None:
    """Refuse labels outside the task, and declared ones without training rows."""
    strange = dict(reader.unseen.get("validation", {}))
    for place in set(validation.label_counts) - set(train.label_counts):
        strange[reader.task.labels[place]] = validation.label_counts[place]
    if strange:
        raise _unseen(origin, strange, reader)


def _unseen(origin: RawSplit, strange: Mapping[str, int], reader: LabelReader) -> DataError:
    listed = ", ".join(f"{label!r} ({count})" for label, count in list(strange.items())[:5])
    return origin.error(
        f"the validation split has labels that training never saw: {listed}.",
        "Correct them, or add training rows with them.",
        column=reader.column,
    )


_NO_LABEL = "; if a row may have none of the labels, or several, use --task multilabel."
_NONE = {"binary": _NO_LABEL, "multiclass": _NO_LABEL}
_SPOKEN = {
    "whole": "whole numbers",
    "number": "numbers",
    "truth": "true and false",
    "list": "lists",
    "other": "no text",
}


def _open(folder: Path) -> Examples:
    saying = json.loads((folder / _SAYING).read_text(encoding="utf-8"))
    task = Task(saying["task"]["kind"], tuple(saying["task"]["labels"]))
    return Examples(
        {name: SplitRows.open(folder / f"{name}.arrow") for name in saying["splits"]},
        task,
        Columns(**saying["columns"]),
        saying["origin"],
        saying["fingerprint"],
        tuple(saying["said"]),
        folder / LISTED if saying["origin"]["dropped"] else None,
    )
