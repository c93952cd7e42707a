"""`whet serve RUN`."""

from __future__ import annotations

import threading
from pathlib import Path

import click

from whet.cli.options import setting_option


@click.command()
@click.argument("run")
@click.option("--port", type=click.IntRange(0, 65535), default=8789, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need --token-file.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the token that every client must send.")
@click.option("--allow-host", "allow_hosts", multiple=True, metavar="NAME", help="Host header that is answered, too.")
@click.option("--queue-rows", type=click.IntRange(1), default=16_384, show_default=True, help="Rows that may wait.")
@click.option(
    "--deadline", type=click.FloatRange(0.001), default=30.0, show_default=True, help="Seconds a request has."
)
@click.option("--max-rows", type=click.IntRange(1), default=4096, show_default=True, help="Inputs a request may have.")
@click.option("--max-mb", type=click.FloatRange(0.001), default=4.0, show_default=True, help="Size a request may have.")
@click.option("--device", default="auto", help="auto, cpu, cuda or mps.", show_default=True)
@setting_option("train", "precision")
@setting_option("model", "trust_remote_code")
def serve(
    run: str,
    port: int,
    host: str,
    token_file: Path | None,
    allow_hosts: tuple[str, ...],
    queue_rows: int,
    deadline: float,
    max_rows: int,
    max_mb: float,
    device: str,
    precision: str | None,
    trust_remote_code: bool | None,
) -> None:
    """Answer HTTP requests with a trained model: POST /predict, and a page to try it.

    RUN is a run folder or a model folder. Ends with Ctrl-C or SIGTERM, after accepted requests are answered.
    """
    from whet.inference.serving.requests import Limits
    from whet.inference.serving.server import Settings
    from whet.inference.serving.server import serve as start

    limits = Limits(rows=max_rows, body_bytes=int(max_mb * 1_000_000), deadline_seconds=deadline)
    settings = Settings(
        host,
        port,
        token_file,
        allow_hosts,
        queue_rows,
        limits,
        device,
        precision or "auto",
        bool(trust_remote_code),
    )
    server = start(run, settings)
    try:
        click.echo(f"Serving {run}: {server.url}")
        click.echo(
            "POST /predict answers, and the address itself is a page to try the model. Ctrl-C ends it.", err=True
        )
        # In short waits: a signal just before a wait does not end it.
        while not threading.Event().wait(0.2):
            pass
    except KeyboardInterrupt:
        server.stop()
