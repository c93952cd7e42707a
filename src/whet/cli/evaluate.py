"""`whet evaluate RUN SOURCE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from whet.cli.options import resolve, setting_option, settings_options
from whet.errors import some_of
from whet.utils.text import json_text


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
    for name, column in _columns(run).items():
        flags[name] = flags[name] or column
    config = resolve({**flags, "source": source}, None, ())

    from whet.api import load
    from whet.inference.evaluate import evaluate_model

    results = evaluate_model(load(run, trust_remote_code=bool(trust_remote_code)), source, config.data)
    if as_json:
        click.echo(json_text({"run": run, "source": source, "splits": results}))
        return
    for split, result in results.items():
        click.echo(f"{split}: {result['rows']} rows")
        if result["unknown_labels"]:
            click.echo(f"  left out: {result['unknown_labels']} rows with a label that the model does not know")
        if result["unlabelled"]:
            click.echo(f"  left out: {result['unlabelled']} rows without a label")
        if result["absent_labels"]:
            click.echo(f"  not measured, for no row has them: {some_of(result['absent_labels'])}")
        for metric, value in result["metrics"].items():
            click.echo(f"  {metric:<18} {value['value']:.4f}  ({value['low']:.4f} to {value['high']:.4f})")
        answer = result["majority"]
        click.echo(f"  commonest answer   {answer['value']:.4f}  ({answer['metric']})")


def _columns(run: str) -> dict[str, str]:
    """The names that the training data had, where the run knows them."""
    from whet.runs.folder import RunFolder

    if not (Path(run) / "data.json").is_file():
        return {}
    found = RunFolder.open(run).data.get("columns", {})
    return {name: column for name, column in found.items() if name in ("text", "pair", "label") and column}
