"""`whet bench [train|loop|predict] [SOURCE]`."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from whet.config import make_config
from whet.errors import UsageError
from whet.utils.text import json_text


@click.command()
@click.argument("what_or_source", required=False)
@click.argument("source", required=False)
@click.option("--model", default="minilm", show_default=True, help="minilm, a local folder or a hub name.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--batch-size", default=8, show_default=True, help="Rows per step.")
@click.option("--steps", type=click.IntRange(min=1), default=40, show_default=True, help="Steps a turn.")
@click.option("--rows", type=click.IntRange(min=1), default=2000, show_default=True, help="Rows to predict.")
@click.option("--turns", type=click.IntRange(min=1), default=3, show_default=True, help="Turns of each, alternating.")
@click.option("--compile", "compiled", is_flag=True, help="Also stock with bf16, tf32, torch.compile: minutes more.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(what_or_source: str | None, source: str | None, as_json: bool, **chosen: Any) -> None:
    """Run the stock library and whet side by side on this machine.

    `whet bench SOURCE` trains, `whet bench loop SOURCE` does so in a loop of one's own with `whet.TrainStep`, and
    `whet bench predict SOURCE` predicts; without SOURCE on the sample pairs.
    """
    what = what_or_source if what_or_source in ("predict", "loop") else "train"
    if what_or_source not in ("predict", "loop", "train"):
        source = what_or_source
    if chosen["compiled"] and what != "train":
        raise UsageError(f"--compile is for `whet bench train`, and not for `whet bench {what}`.")
    config = make_config(
        {
            "source": source or "sample/pairs",
            "model": chosen["model"],
            "device": chosen["device"],
            "batch_size": chosen["batch_size"],
            "recipe": "course",
        }
    )

    from whet.tools.bench.benchmark import COMPILED, bench_loop, bench_prediction, bench_training

    def echo(line: str) -> None:
        click.echo(line, err=True)

    if what == "loop":
        result = bench_loop(config, steps=chosen["steps"], turns=chosen["turns"], echo=echo)
    elif what == "predict":
        result = bench_prediction(config, rows=chosen["rows"], turns=chosen["turns"], echo=echo)
    else:
        more = (COMPILED,) if chosen["compiled"] else ()
        result = bench_training(config, steps=chosen["steps"], turns=chosen["turns"], echo=echo, more=more)
    if as_json:
        click.echo(json_text(result))
    else:
        _show(result)


def _show(result: dict[str, Any]) -> None:
    path, why = (result["job"].pop(name) for name in ("path", "why"))
    click.echo("  ".join(f"{name} {value}" for name, value in result["job"].items()))
    click.echo(textwrap.fill(f"path of whet: {path}" + (f" ({why})" if why else ""), 79))
    click.echo(f"{'':<16}{'ms per step':>11}{'rows per second':>15}{'peak MB':>10}{'whet is faster by':>19}")
    for name, row in result["contenders"].items():
        step = f"{row['ms_a_step']:.1f}" if "ms_a_step" in row else ""
        ratio = "" if name == "whet" else f"{row['ratio']:.2f} times"
        click.echo(f"{name:<16}{step:>11}{row['rows_a_second']:>15.1f}{row['peak_mb']:>10.0f}{ratio:>19}")
    if result.get("preparing_seconds", 0.0) > 0.1:
        click.echo(f"whet got ready for {result['preparing_seconds']:.1f} s, which are not in its milliseconds")
    if "losses" in result:
        first = next(name for name, found in result["losses"].items() if isinstance(found, list))
        for name, found in result["losses"].items():
            if isinstance(found, dict):
                click.echo(
                    f"losses of {result['losses']['steps']} steps without dropout, {name} against {first}: "
                    f"at most {100 * found['largest_difference']:.2f}% apart"
                )
    else:
        click.echo(f"the same label for {100 * result['same_labels']:.1f}% of the rows")
