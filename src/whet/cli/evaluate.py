"""`whet evaluate RUN SOURCE`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whet.cli.options import resolve, setting_option, settings_options
from whet.errors import shortened_list
from whet.utils.text import json_text

if TYPE_CHECKING:
    from whet.task import Task


@click.command()
@click.argument("run")
@click.argument("source")
@settings_options("data")
@setting_option("model", "trust_remote_code")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(run: str, source: str, trust_remote_code: bool | None, as_json: bool, **flags: Any) -> None:
    """Score a trained model on labelled text, with 95% intervals.

    RUN is a run folder or a model folder; SOURCE a file, a folder or a hub name.
    """
    for name, given in _settings_of(run).items():
        flags[name] = flags[name] or given
    config = resolve({**flags, "source": source}, None, ())

    from whet.api import load
    from whet.inference.evaluate import evaluate_model

    predictor = load(run, trust_remote_code=bool(trust_remote_code))
    results = evaluate_model(predictor, source, config.data, echo=partial(click.echo, err=True))
    if as_json:
        click.echo(json_text({"run": run, "source": source, "splits": results}))
        return
    for split, result in results.items():
        click.echo(f"{split}: {_rows(result['rows'])}")
        if result["unknown_labels"]:
            click.echo(f"  left out: {_rows(result['unknown_labels'])} with a label that is unknown to the model")
        if result["unlabelled"]:
            click.echo(f"  left out: {_rows(result['unlabelled'])} without a label")
        if result["absent_labels"]:
            click.echo(f"  not measured, for no row has them: {shortened_list(result['absent_labels'])}")
        _show_scores(predictor.task, result)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _show_scores(task: Task, result: dict[str, Any]) -> None:
    """Show each score with its interval, and the constant answer's."""
    from whet.runs import score_words as words

    named = {metric: words.metric_of(metric, task.kind, task.labels) for metric in result["metrics"]}
    width = max(18, *map(len, named.values()))
    for metric, found in result["metrics"].items():
        value, low, high = (words.score(metric, found[key]) for key in ("value", "low", "high"))
        click.echo(f"  {named[metric]:<{width}} {value}  ({low} to {high})")
    answer = result["majority"]
    names = ("mse", "mae") if task.kind == "regression" else (answer["metric"],)
    reached = ", ".join(f"{name} {words.score(name, answer[name])}" for name in names)
    what = "constant" if task.kind == "regression" else "commonest answer"
    click.echo(f"  {what:<{width}} {reached}  (always {words.answer(answer['label'])})")


def _settings_of(run: str) -> dict[str, str]:
    """Return the column names and the handling of rare labels of the training data, if the run has them."""
    from whet.runs.folder import RunFolder

    if not (Path(run) / "data.json").is_file():
        return {}
    folder = RunFolder.open(run)
    found = folder.data.get("columns", {})
    settings = {name: column for name, column in found.items() if name in ("text", "pair", "label") and column}
    rare = folder.config.data.rare
    return {**settings, "rare": rare} if rare is not None and rare in folder.data.get("labels", ()) else settings
