"""`whet verdict RUN`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from whet.utils.text import json_text


@click.command()
@click.argument("run", metavar="RUN|FILE", type=click.Path(path_type=Path))
@click.option("--majority", type=float, metavar="SHARE", help="Score of always giving the commonest answer.")
@click.option("--classes", type=int, metavar="N", help="Number of classes.")
@click.option("--rows", type=int, metavar="N", help="Evaluation rows.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verdict(run: Path, majority: float | None, classes: int | None, rows: int | None, as_json: bool) -> None:
    """Explain what the learning curves of a run mean, and what to change.

    RUN is a run folder, or a checkpoint or the output folder of a stock Trainer. FILE is a records.jsonl, a stock
    Trainer's trainer_state.json, or a CSV with columns step, train_loss, eval_loss, metric. --majority, --classes and
    --rows give facts that such a file lacks.
    """
    from whet.cli.terminal import wrapped
    from whet.runs.verdict.foreign_logs import Constants, read_observed
    from whet.runs.verdict.judge import judge

    found = judge(read_observed(run, Constants(majority=majority, classes=classes, rows=rows)))
    if as_json:
        click.echo(json_text(found.as_dict()))
        return
    click.echo(f"{found.verdict}  (step {found.step}, confidence {found.confidence:.0%})")
    for line in found.lines():
        click.echo(wrapped(line, sys.stdout, indent=0))
