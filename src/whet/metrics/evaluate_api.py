"""`load("glue", "mrpc")`: metric objects with the interface of the `evaluate` library, without downloads."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from whet.errors import UsageError, nearest
from whet.metrics.inputs import check_whole, checked_batch
from whet.metrics.registry import GENERAL, GLUE, MetricSpec
from whet.utils.arrays import Array

# Arguments of `evaluate` about downloads and caches, which do not exist here.
_WITHOUT_EFFECT = frozenset(
    {
        *(
            "module_type",
            "revision",
            "script_version",
            "trust_remote_code",
            "download_config",
            "download_mode",
        ),
        *("cache_dir", "experiment_id", "keep_in_memory", "max_concurrent_cache_files", "timeout", "hash"),
        *("seed", "process_id"),
    }
)


class Scorer(Protocol):
    """The interface of a metric object, whet's own or another library's."""

    name: str

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None: ...

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> Any: ...


class Metric:
    """Collects predictions and references by row, by batch or at once, and computes scores from them."""

    def __init__(self, spec: MetricSpec, config_name: str) -> None:
        self.name = spec.name
        self.config_name = config_name
        self.description = spec.description
        self.options = spec.options
        self._recipe = spec
        self._batches: list[tuple[Array, Array]] = []

    def __repr__(self) -> str:
        options = f", options: {', '.join(self.options)}" if self.options else ""
        return f"<Metric {self.name!r} ({self.config_name}): {self.description}{options}>"

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one row."""
        prediction = self._take_scores(prediction, kwargs)
        self._refuse(kwargs, ("prediction", "reference"))
        for value, name in ((prediction, "prediction"), (reference, "reference")):
            if value is None:
                raise UsageError(f"{name} is missing.", f"Pass {name}=.")
        self._batches.append(checked_batch(self._recipe, [prediction], [reference]))

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add a batch of rows."""
        predictions = self._take_scores(predictions, kwargs)
        self._refuse(kwargs, ("predictions", "references"))
        self._batches.append(checked_batch(self._recipe, predictions, references))

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the scores of all rows added so far and of those given here, then discard them."""
        predictions = self._take_scores(predictions, kwargs)
        self._refuse(kwargs, ("predictions", "references", *self.options), self.options)
        batches = list(self._batches)
        if predictions is not None or references is not None:
            batches.append(checked_batch(self._recipe, predictions, references))
        if not batches:
            raise UsageError(
                f"{self.name} has nothing to compute.",
                "Pass predictions= and references=, or call add_batch first.",
            )
        # The rows are kept after an error, so that the call can be corrected and repeated.
        result = self._computed(batches, kwargs)
        self._batches.clear()
        return result

    def _computed(self, batches: list[tuple[Array, Array]], options: dict[str, Any]) -> dict[str, Any]:
        truth, predicted = (
            _joined(parts, name) for parts, name in zip(zip(*batches, strict=True), _NAMES, strict=True)
        )
        check_whole(self._recipe, truth, predicted)
        try:
            # The values of degenerate cases are documented, so the libraries' warnings are silenced.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self._recipe.compute(truth, predicted, **options)
        except (ValueError, TypeError) as error:
            raise UsageError(f"{self.name}: {error}") from error

    def _take_scores(self, predictions: Any, kwargs: dict[str, Any]) -> Any:
        """Accept `prediction_scores`, the name used by metrics of scores."""
        if self._recipe.takes == "scores" and "prediction_scores" in kwargs:
            return kwargs.pop("prediction_scores")
        return predictions

    def _refuse(self, kwargs: dict[str, Any], known: Sequence[str], allowed: Sequence[str] = ()) -> None:
        for name in kwargs:
            if name not in allowed:
                raise UsageError(f"{self.name} takes no argument {name!r}.", nearest(name, known))


class Combined:
    """Several metrics on the same rows, with their results in one dictionary."""

    def __init__(self, metrics: Mapping[str, Scorer], force_prefix: bool = False) -> None:
        self.name = "combined"
        self.description = ", ".join(metrics)
        self._metrics = dict(metrics)
        self._force_prefix = force_prefix

    def add(self, *, prediction: Any = None, reference: Any = None) -> None:
        """Add one row."""
        self.add_batch(predictions=[prediction], references=[reference])

    def add_batch(self, *, predictions: Any = None, references: Any = None) -> None:
        """Add a batch of rows."""
        for metric in self._metrics.values():
            metric.add_batch(predictions=predictions, references=references)

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return every metric's result. Options are passed to the metrics that accept them; equal keys get the
        metric's name."""
        options = {name: getattr(metric, "options", tuple(kwargs)) for name, metric in self._metrics.items()}
        known = {option for each in options.values() for option in each}
        for option in kwargs:
            if option not in known:
                raise UsageError(f"None of {self.description} takes {option!r}.", nearest(option, known))
        results = {
            name: metric.compute(
                predictions=predictions,
                references=references,
                **{key: value for key, value in kwargs.items() if key in options[name]},
            )
            for name, metric in self._metrics.items()
        }
        times = Counter(key for result in results.values() for key in result)
        return {
            f"{name}_{key}" if self._force_prefix or times[key] > 1 else key: value
            for name, result in results.items()
            for key, value in result.items()
        }


def load(path: str, config_name: str | None = None, **kwargs: Any) -> Metric:
    """Return the metric of that name: "accuracy", "f1", … or "glue" with a task's name as configuration.

    Arguments of `evaluate.load` about downloads and caches are accepted and have no effect.
    """
    for name in kwargs:
        if name not in (*_WITHOUT_EFFECT, "num_process"):
            raise UsageError(f"load takes no argument {name!r}.", nearest(name, {*_WITHOUT_EFFECT, "config_name"}))
    if kwargs.get("num_process", 1) != 1:
        raise UsageError(
            f"num_process={kwargs['num_process']}: whet's metrics do not gather over processes.",
            "Gather first, with accelerator.gather_for_metrics.",
        )
    path = path.removeprefix("evaluate-metric/")
    if path == "glue":
        return Metric(_glue(config_name), str(config_name))
    if path not in GENERAL:
        raise UsageError(f"There is no metric {path!r}.", nearest(path, {*GENERAL, "glue"}))
    spec, config = GENERAL[path], config_name or "default"
    if config not in spec.configs:
        raise UsageError(f"The metric {path!r} has no configuration {config!r}.", nearest(config, spec.configs))
    return Metric(spec, config)


load_metric = load
"""The same as `load`, under its name in `datasets`."""


def combine(evaluations: Sequence[str | Scorer] | Mapping[str, str | Scorer], force_prefix: bool = False) -> Combined:
    """Combine several metrics, given by name or as objects; the keys of a dictionary become prefixes."""
    if isinstance(evaluations, Mapping):
        return Combined({key: _object(each) for key, each in evaluations.items()}, force_prefix)
    found: dict[str, Scorer] = {}
    seen: Counter[str] = Counter()
    for metric in map(_object, evaluations):
        repeated = seen[metric.name]
        found[f"{metric.name}_{repeated}" if repeated else metric.name] = metric
        seen[metric.name] += 1
    return Combined(found, force_prefix)


_NAMES = ("references", "predictions")


def _glue(config_name: str | None) -> MetricSpec:
    if config_name is None:
        raise UsageError("glue needs a configuration.", f"One of: {', '.join(GLUE)}.")
    if config_name not in GLUE:
        raise UsageError(f"glue has no configuration {config_name!r}.", nearest(config_name, GLUE))
    return GLUE[config_name]


def _object(metric: str | Scorer) -> Scorer:
    return load(metric) if isinstance(metric, str) else metric


def _joined(parts: Sequence[Array], name: str) -> Array:
    widths = {part.shape[1:] for part in parts}
    if len(widths) > 1:
        raise UsageError(f"{name} came in batches of different shapes: {sorted(part.shape for part in parts)}.")
    return np.concatenate(parts)
