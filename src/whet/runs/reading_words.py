"""Describes how a run reads texts beyond its model's length limit."""

from __future__ import annotations

from typing import Any


def how_read(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a fact from data.json for the report, if more than the head of a text is read."""
    long, most = data.get("long", "head"), data.get("max_length")
    if long == "head-tail":
        return [("long texts", f"the first and the last tokens, {most} together")]
    if long != "windows":
        return []
    splits = data.get("audit", {}).get("tokens", {}).get("splits", {})
    counts = [f"{split} {of['window_rows']:,} rows in {of['windows']:,}" for split, of in splits.items()]
    return [("long texts", f"windows of {most} tokens: {', '.join(counts)}")]


def how_pipelines_read(data: dict[str, Any]) -> list[str]:
    """Return lines for the model card: a pipeline of transformers reads the head, and so predicts differently."""
    long = data.get("long", "head")
    how = {"windows": "all of a long text, in windows", "head-tail": "head and tail of a long text"}.get(long)
    if how is None:
        return []
    return ["", f"whet reads {how} (`--long {long}`); `transformers.pipeline` reads its head only."]
