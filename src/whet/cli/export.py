"""`whet export RUN --to onnx`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Choice(["onnx"]), default="onnx", show_default=True, help="The format.")
@click.option("--int8", is_flag=True, help="Weights as 8-bit numbers: a quarter of the size.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where to [RUN/onnx].")
@click.option("--accept", is_flag=True, help="Keep the model although the proof speaks against it.")
def export(run: Path, target: str, int8: bool, output: Path | None, accept: bool) -> None:
    """Write a model for onnxruntime, and prove its answers on the run's validation rows.

    The folder has a predict.py that needs only onnxruntime, tokenizers and numpy.
    """
    from whet.inference.onnx import export_onnx

    folder = output or run / (f"{target}-int8" if int8 else target)
    for line in export_onnx(run, folder, int8=int8, accept=accept).lines():
        click.echo(line)
    size = (folder / "model.onnx").stat().st_size / 1e6
    click.echo(f"{folder}: {size:.1f} MB, use it with {folder / 'predict.py'}", err=True)
