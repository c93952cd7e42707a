"""The content of a report as data, shown as HTML and as Markdown.

Every part is built separately from the run folder. An interrupted run, one without test rows, or one copied without
its predictions gets the parts that can be built. An error here must not make a finished run fail.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from whet.records import End, Evaluation, Finding, Record, shipped_evaluation
from whet.runs.curves import Curves, curves
from whet.runs.folder import RunFolder
from whet.runs.label_errors import Suspects, find_suspects
from whet.runs.label_words import facts_of
from whet.runs.progress import duration
from whet.runs.reading_words import how_read
from whet.runs.report.baselines import BaselineTable, baseline_tables
from whet.runs.report.charts import Chart, charts_of, reliability_chart, scatter_chart
from whet.runs.report.mistakes import (
    MAX_COUNTED,
    ClassScore,
    Confusion,
    Example,
    PredictedRows,
    class_scores,
    confusion_of,
    confusion_recorded,
    most_wrong,
    read_answers,
    worst_recorded,
)
from whet.runs.report.scores import Scores, scores_of
from whet.runs.verdict.judge import Verdict, verdict_of

T = TypeVar("T")
FEW_LABELS = 40
SHOWN_LABELS = 20
"""Number of labels that are shown first if there are more than a table can show."""

STATES = {
    "finished": ("finished", "good"),
    "patience": ("stopped early", "good"),
    "deadline": ("out of time, resumable", "warn"),
    "interrupted": ("interrupted, resumable", "warn"),
    "diverged": ("diverged", "bad"),
    "pruned": ("given up by the tuning: others were better", "warn"),
    "stopped": ("stopped: the tuning's time was up", "warn"),
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    name: str
    value: str
    default: str
    changed: bool


@dataclass(frozen=True, kw_only=True)
class Truncated:
    """The tokens that the length limit cut from one split."""

    split: str
    rows: int
    """Rows that lost tokens."""
    tokens: int
    first: int
    """Tokens that the first texts lost."""
    second: int = 0
    share: float
    """Rows that lost tokens, as a share of the split."""


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """The sources of the rows and the findings about them."""

    facts: list[tuple[str, str]] = field(default_factory=list)
    label_shares: list[tuple[str, list[tuple[str, float]]]] = field(default_factory=list)
    truncation: list[Truncated] = field(default_factory=list)
    findings: list[ReportFinding] = field(default_factory=list)
    max_length: int | None = None
    has_pairs: bool = False

    @property
    def share_splits(self) -> list[str]:
        return [split for split, _ in self.label_shares]

    @property
    def share_rows(self) -> list[tuple[str, list[float]]]:
        """Return one row per label with its share in each split."""
        names = [name for name, _ in self.label_shares[0][1]] if self.label_shares else []
        return [(name, [shares[place][1] for _, shares in self.label_shares]) for place, name in enumerate(names)]

    @property
    def commonest(self) -> list[tuple[str, list[float]]]:
        """Return the same; of many labels only those with the largest share in the first split."""
        rows = self.share_rows
        return rows if len(rows) <= FEW_LABELS else sorted(rows, key=lambda row: -row[1][0])[:SHOWN_LABELS]


@dataclass(frozen=True, kw_only=True)
class ReportFinding:
    """A finding of the audit."""

    severity: str
    tone: str
    message: str
    advice: str
    where: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """The report of one run."""

    name: str
    state: str
    tone: str
    began: str
    summary: str
    scores: Scores
    baselines: list[BaselineTable]
    charts: list[Chart]
    verdict: Verdict | None
    saved: str
    findings: list[str]
    confusion: Confusion | None
    classes: list[ClassScore]
    examined: str
    """The split of the confusion matrix, the classes, the calibration and the worst rows."""
    calibration: Chart | None
    calibration_words: str
    scatter: Chart | None
    worst: list[Example]
    suspects: Suspects | None
    """Rows whose given label is probably wrong; None where no model judged rows that it did not learn from."""
    data: DataPart
    settings: list[Setting]
    environment: list[tuple[str, str]]
    snippet: str
    notes: list[str]
    """Parts that could not be built, with the reason."""

    @property
    def few_labels(self) -> bool:
        """Whether a table can show all labels."""
        return len(self.classes) <= FEW_LABELS

    @property
    def weakest(self) -> list[ClassScore]:
        """Return all labels; of many only those with rows and the lowest F1."""
        if self.few_labels:
            return self.classes
        return sorted((label for label in self.classes if label.rows), key=lambda label: label.f1)[:SHOWN_LABELS]


def read_report(folder: RunFolder) -> Report:
    """Build the report of a run."""
    return _Reader(folder).report()


class _Reader:
    """Builds the parts one by one; a part that fails becomes a note instead of an error."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.records: list[Record] = self.part("records", folder.records, [])
        self.curves: Curves = self.part("curves", lambda: curves(self.records), Curves())
        start = self.curves.start
        self.task = start.task if start else ""
        self.names = list(start.labels) if start else []
        self.answers: dict[str, PredictedRows] = self.part("predictions", self._answers, {})

    def part(self, name: str, make: Callable[[], T], otherwise: T) -> T:
        try:
            return make()
        except Exception as error:  # the report comes last: its errors must not undo the run
            self.notes.append(f"{name}: {error or type(error).__name__}")
            return otherwise

    def report(self) -> Report:
        state, tone = self._state()
        scores = self.part("scores", lambda: scores_of(self.curves, self.records, self.answers), Scores())
        examined = self.answers.get("validation") or self.answers.get("test")
        last = self._last_evaluation()
        return Report(
            name=self.folder.path.resolve().name,
            state=state,
            tone=tone,
            began=self.curves.start.time if self.curves.start else "",
            summary=self.part("summary", lambda: self._summary(scores), ""),
            scores=scores,
            baselines=self.part("baselines", lambda: baseline_tables(self.records), []),
            charts=self.part("charts", lambda: charts_of(self.curves), []),
            verdict=self.part("verdict", lambda: verdict_of(self.records), None) if self.records else None,
            saved=self.part("early stopping", self._saved, ""),
            findings=[r.sentence for r in self.records if isinstance(r, Finding) and r.about != "verdict"],
            confusion=self.part("confusion", lambda: self._confusion(examined, last), None),
            classes=self.part("classes", lambda: self._classes(examined), []),
            examined=examined.split if examined else (last.split if last else ""),
            calibration=self.part("calibration", lambda: self._calibration(examined), None),
            calibration_words=self.part("calibration", lambda: self._calibration_words(examined), ""),
            scatter=self.part("scatter", lambda: self._scatter(examined), None),
            worst=self.part("worst rows", lambda: self._worst(examined, last), []),
            suspects=self.part("label errors", lambda: find_suspects(self.folder), None),
            data=self.part("data", self._data, DataPart()),
            settings=self.part("settings", self._settings, []),
            environment=self.part("environment", self._environment, []),
            snippet=self.part("snippet", self._snippet, ""),
            notes=self.notes,
        )

    def _answers(self) -> dict[str, PredictedRows]:
        found = {split: read_answers(self.folder, split, self.task, self.names) for split in ("validation", "test")}
        return {split: answers for split, answers in found.items() if answers is not None}

    def _state(self) -> tuple[str, str]:
        end = self.curves.end
        if end is None:
            return "running, or cut off", "warn"
        return STATES.get(end.reason, (end.reason, "warn"))

    def _last_evaluation(self) -> Evaluation | None:
        """Return the best evaluation, whose weights are kept; the last one if none is marked."""
        return shipped_evaluation(self.records, self.curves.split)

    def _summary(self, scores: Scores) -> str:
        start, end = self.curves.start, self.curves.end
        if start is None:
            return "Nothing was recorded yet."
        rows, steps = start.rows.get("train", 0), self._steps()
        model = self.part("settings", lambda: self.folder.config.model.model, "")
        seconds = end.seconds if end else self._seconds()
        done = f"{steps:,} of {start.total_steps:,} steps" if steps < start.total_steps else f"{steps:,} steps"
        sentence = f"{model or 'The model'} saw {rows:,} training rows in {done} ({duration(seconds)})"
        if scores.main is None:
            return f"{sentence}; it was not evaluated yet."
        reached = " and ".join(f"{score.value} on {score.rows:,} {score.split} rows" for score in scores.mains)
        return f"{sentence} and reached {scores.main.words} {reached}."

    def _steps(self) -> int:
        return max((record.step for record in self.records), default=0)

    def _seconds(self) -> float:
        from whet.runs.progress import progress

        return progress(self.records).seconds

    def _saved(self) -> str:
        """Return the steps and the time that early stopping saved."""
        start, end = self.curves.start, self.curves.end
        if start is None or not isinstance(end, End) or end.reason != "patience":
            return ""
        left = start.total_steps - end.step
        time = duration(end.seconds / max(1, end.step) * left)
        return (
            f"Stopped early at step {end.step:,} of {start.total_steps:,}: no evaluation was better than step "
            f"{end.best_step:,}. That saved {left:,} steps, about {time}."
        )

    def _confusion(self, examined: PredictedRows | None, last: Evaluation | None) -> Confusion | None:
        if self.task not in ("binary", "multiclass") or len(self.names) > MAX_COUNTED:
            return None
        if examined is not None:
            return confusion_of(examined)
        return confusion_recorded(last, self.names) if last is not None and last.confusion else None

    def _classes(self, examined: PredictedRows | None) -> list[ClassScore]:
        return class_scores(examined) if examined is not None and self.task != "regression" else []

    def _calibration(self, examined: PredictedRows | None) -> Chart | None:
        from whet.metrics.calibration import reliability

        if examined is None or self.task == "regression":
            return None
        return reliability_chart(reliability(self.task, examined.logits, examined.labels))

    def _calibration_words(self, examined: PredictedRows | None) -> str:
        from whet.metrics.calibration import divisor_in_words, expected_calibration_error, fit_temperature

        if examined is None or self.task == "regression":
            return ""
        error = expected_calibration_error(self.task, examined.logits, examined.labels)
        temperature = fit_temperature(self.task, examined.logits, examined.labels)
        tends = "too sure of itself" if temperature > 1.05 else "too modest" if temperature < 0.95 else "about right"
        return (
            f"Confidence and accuracy are {100 * error:.1f} points apart on average (expected calibration error): "
            f"the model is {tends}. Dividing its logits by {divisor_in_words(temperature)} fits these rows best."
        )

    def _scatter(self, examined: PredictedRows | None) -> Chart | None:
        if examined is None or self.task != "regression":
            return None
        return scatter_chart(examined.labels.tolist(), examined.predicted.reshape(-1).tolist())

    def _worst(self, examined: PredictedRows | None, last: Evaluation | None) -> list[Example]:
        if examined is not None:
            return most_wrong(examined)
        return worst_recorded(last) if last is not None else []

    def _data(self) -> DataPart:
        data, start = self.folder.data, self.curves.start
        columns = data.get("columns", {})
        origin = {key: value for key, value in data.get("origin", {}).items() if value and key != "rows"}
        facts = [(str(key).replace("_", " "), in_words(value)) for key, value in origin.items()]
        facts += [(f"{key} column", str(name)) for key, name in columns.items() if name]
        rows = data.get("rows") or (start.rows if start else {})
        facts += [("rows", ", ".join(f"{split} {count:,}" for split, count in rows.items()))]
        facts += facts_of(data.get("audit", {}).get("splits", {}).get("train", {}))
        facts += how_read(data)
        if data.get("fingerprint"):
            facts.append(("fingerprint", str(data["fingerprint"])))
        shares = []
        if start is not None:
            shares = [(name, list(zip(start.labels, own, strict=False))) for name, own in start.prior.items() if own]
        return DataPart(
            facts=facts,
            label_shares=shares,
            truncation=[
                _truncated(split, cut, rows.get(split, 0)) for split, cut in data.get("truncation", {}).items()
            ],
            findings=[_found(finding) for finding in data.get("audit", {}).get("findings", [])],
            max_length=data.get("max_length"),
            has_pairs=bool(columns.get("pair")),
        )

    def _settings(self) -> list[Setting]:
        from whet.config import Config

        defaults = Config().flat()
        found = [
            Setting(name=name, value=plain(value), default=plain(defaults[name]), changed=value != defaults[name])
            for name, value in self.folder.config.flat().items()
        ]
        return sorted(found, key=lambda setting: not setting.changed)

    def _environment(self) -> list[tuple[str, str]]:
        flat: list[tuple[str, str]] = []
        for key, value in self.folder.environment.items():
            if isinstance(value, dict):
                flat += [(str(name), plain(inner)) for name, inner in value.items()]
            else:
                flat.append((str(key).replace("_", " "), plain(value)))
        return flat

    def _snippet(self) -> str:
        if not self.folder.model.is_dir():
            return ""
        pair = self.folder.data.get("columns", {}).get("pair")
        arguments = '"A text.", "Another one."' if pair else '"A text."'
        return f"import whet\n\nmodel = whet.load({str(self.folder.path)!r})\nprint(model.predict({arguments}))"


def _truncated(split: str, cut: dict[str, Any], rows: int) -> Truncated:
    return Truncated(
        split=split,
        rows=int(cut.get("rows", 0)),
        tokens=int(cut.get("tokens", 0)),
        first=int(cut.get("first_tokens", 0)),
        second=int(cut.get("second_tokens", 0)),
        share=int(cut.get("rows", 0)) / max(1, rows),
    )


def _found(finding: dict[str, Any]) -> ReportFinding:
    severity = str(finding.get("severity", ""))
    rows: dict[str, list[str]] = {}
    for place in finding.get("rows", []):
        rows.setdefault(str(place["split"]), []).append(str(place["row"]))
    return ReportFinding(
        severity=severity,
        tone={"error": "bad", "warning": "warn"}.get(severity, ""),
        message=str(finding.get("message", "")),
        advice=str(finding.get("advice", "")),
        where="; ".join(f"{split} rows {', '.join(numbers)}" for split, numbers in rows.items()),
    )


def in_words(value: Any) -> str:
    """Format a nested fact without brackets: `train.csv (split train, rows 900)`."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {in_words(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(in_words(item) for item in value)
    return plain(value)


def plain(value: Any) -> str:
    """Format a setting or fact as a short text."""
    if value is None or value == "" or value == () or value == []:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str | int | float) for item in value):
        return ", ".join(map(str, value))
    if dataclasses.is_dataclass(value) or isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
