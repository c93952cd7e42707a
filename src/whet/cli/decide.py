"""`whet decide RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from whet.runs.decisions import Decisions


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--goal", metavar="GOAL", help='"precision>=0.95", "recall>=0.9", f1 or cost=fp:1,fn:10.')
@click.option("--positive", metavar="LABEL", help="The label of the goal [the second of two].")
@click.option("--abstain", type=float, metavar="ERROR", help="Leave unsure rows to a person, to err at most so often.")
@click.option("--coverage", type=float, metavar="SHARE", help="Give sets of labels that hold the right one so often.")
@click.option("--clear", is_flag=True, help="Take all of it back.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def decide(
    run: Path,
    goal: str | None,
    positive: str | None,
    abstain: float | None,
    coverage: float | None,
    clear: bool,
    as_json: bool,
) -> None:
    """Decide how a model's probabilities are used: thresholds, unanswered rows, sets of labels.

    The decisions are made on the run's validation rows and stored in its model folder, where predict, serve and
    export find them. Without a flag, the temperature is fitted again and the decisions are shown.
    """
    from whet.errors import UsageError
    from whet.inference import decisions

    if clear and (goal, positive, abstain, coverage) != (None,) * 4:
        raise UsageError("--clear takes everything back.", "Give it alone.")
    if clear:
        decided = decisions.clear(run)
    else:
        decided = decisions.decide(run, goal=goal, positive=positive, abstain=abstain, coverage=coverage)
    if as_json:
        click.echo(decided.to_json().rstrip())
        return
    for line in described(decided):
        click.echo(line)


def described(decided: Decisions) -> list[str]:
    """Return one line per decision with its expected result."""
    on = decided.calibrated_on
    why = f": {on['why']}" if on.get("why") else ""
    lines = [f"probabilities  temperature {decided.temperature:.3f}, from {on.get('rows', 0)} validation rows{why}"]
    for label, expected in decided.expected.get("goal", {}).items():
        if label not in decided.thresholds:
            lines.append(f"goal           {decided.goal} of {label!r}: {expected['why']} Its threshold stays 0.5.")
            continue
        lines.append(f"goal           {decided.goal}: {label!r} from p = {decided.thresholds[label]:.4f} on")
        said = ", ".join(f"{name} {_span(expected[name])}" for name in ("precision", "recall"))
        cost = f", cost {expected['cost']:.4f} a row" if decided.goal.startswith("cost") else ""
        lines.append(f"               expect {said}{cost}; {expected['share']:.1%} of rows get the label")
    if decided.confidence is not None:
        expected = decided.expected["abstain"]
        lines.append(f"abstain        below a confidence of {decided.confidence:.4f} a row is left to a person")
        lines.append(f"               expect {_span(expected['answered'])} answered, error {_span(expected['error'])}")
    if decided.coverage is not None:
        expected = decided.expected["coverage"]
        size = (
            f", {expected['mean_size']:.2f} labels a set, {expected['empty']:.1%} empty" if "empty" in expected else ""
        )
        lines.append(f"coverage       sets that hold the truth in {decided.coverage:.1%} of rows")
        lines.append(f"               expect {_span(expected['covered'])}{size}")
    return lines


def _span(interval: dict[str, Any]) -> str:
    return f"{interval['value']:.3f} ({interval['low']:.3f} to {interval['high']:.3f})"
