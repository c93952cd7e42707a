"""`whet selftest`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import click

from whet.utils.text import json_text

if TYPE_CHECKING:
    from whet.tools.selftest.trials import Outcome


@click.command()
@click.option("--kills", default=20, show_default=True, help="Runs that are killed with -9 and finished.")
@click.option("--signals", default=10, show_default=True, help="Runs that are interrupted by SIGTERM or SIGINT.")
@click.option("--corruptions", default=900, show_default=True, help="Damages to checkpoints.")
@click.option("--seed", default=7, show_default=True, help="Chooses the moments and the damages.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def selftest(kills: int, signals: int, corruptions: int, seed: int, as_json: bool) -> None:
    """Kill, resume and corrupt a small run on this machine, and compare the results to the bit.

    Takes about a minute, needs no network, and leaves nothing behind unless something was wrong.
    """
    import shutil

    from whet.tools.selftest.trials import selftest as run_selftest

    folder = Path(mkdtemp(prefix="whet-selftest-"))

    def echo(line: str) -> None:
        if not as_json:
            click.echo(line, err=True)

    try:
        outcome = run_selftest(folder, kills=kills, signals=signals, corruptions=corruptions, seed=seed, echo=echo)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if as_json:
        about = {"tallies": [asdict(tally) for tally in outcome.tallies], "corruptions": outcome.corruptions}
        click.echo(json_text({"passed": outcome.passed, "seconds": round(outcome.seconds, 1), **about}))
    else:
        for line in table(outcome):
            click.echo(line)
    if outcome.passed:
        shutil.rmtree(folder)
        return
    click.echo(f"whet: the self-test failed; what it left is in {folder}.", err=True)
    raise click.exceptions.Exit(1)


def table(outcome: Outcome) -> list[str]:
    """Return one line per kind, then the conclusion."""
    lines = [f"{'':<28}{'trials':>8}{'stuck':>8}{'bit-exact':>11}{'different':>11}{'steps repeated':>16}"]
    for tally in outcome.tallies:
        lines.append(
            f"{tally.name:<28}{tally.trials:>8}{tally.stuck:>8}{tally.exact:>11}{tally.different:>11}"
            f"{tally.most_repeated:>16}"
        )
        lines += [f"    {trouble}" for trouble in tally.troubles]
    tried = sum(row["tried"] for row in outcome.corruptions.values())
    if tried:
        noticed = sum(row["noticed"] for row in outcome.corruptions.values())
        right = sum(row["fell back right"] for row in outcome.corruptions.values())
        lines.append(
            f"Damaged checkpoints: {noticed} of {tried} noticed, {right} of {tried} fell back to the right one."
        )
    kills = [tally for tally in outcome.tallies if tally.name.startswith("kill")]
    if kills:
        exact, trials = sum(tally.exact for tally in kills), sum(tally.trials for tally in kills)
        stuck = sum(tally.stuck for tally in kills)
        lines.append(f"Kills: {exact} of {trials} bit-exact, {stuck} stuck. ({outcome.seconds:.0f} s)")
    return lines
