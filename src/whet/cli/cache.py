"""`whet cache`: shows and clears the cache."""

from __future__ import annotations

import time

import click

from whet.data import cache as store
from whet.utils.text import json_text


@click.command()
@click.option("--clear", is_flag=True, help="Remove everything that no process uses.")
@click.option("--limit", type=float, metavar="GB", help="Keep the cache under this size, now and in later runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def cache(clear: bool, limit: float | None, as_json: bool) -> None:
    """Show what whet keeps on disk between runs, or make room.

    The cache holds what can be computed again: read data and tokens, by content. WHET_CACHE sets its folder.
    """
    if limit is not None:
        store.write_limit(limit)
    removed = store.clear() if clear else store.trim() if limit is not None else []
    entries = store.entries()[::-1]
    if as_json:
        click.echo(_as_json(entries, removed))
        return
    if clear or limit is not None:
        click.echo(f"Removed {_count(removed)}, {_size(sum(entry.size for entry in removed))}.")
    total = sum(entry.size for entry in entries)
    click.echo(f"{store.cache_root()}: {_count(entries)}, {_size(total)} of at most {store.read_limit():g} GB")
    for entry in entries:
        used = "in use" if store.in_use(entry.path) else _ago(time.time() - entry.used)
        click.echo(f"  {entry.kind:<9} {_size(entry.size):>9}  {used:<13} {entry.note or entry.key}"[:80])


def _as_json(entries: list[store.Entry], removed: list[store.Entry]) -> str:
    def plain(entry: store.Entry) -> dict[str, object]:
        return {
            "kind": entry.kind,
            "key": entry.key,
            "note": entry.note,
            "bytes": entry.size,
            "used": round(entry.used, 3),
            "in_use": entry not in removed and store.in_use(entry.path),
        }

    return json_text(
        {
            "path": str(store.cache_root()),
            "limit_gb": store.read_limit(),
            "bytes": sum(entry.size for entry in entries),
            "entries": [plain(entry) for entry in entries],
            "removed": [plain(entry) for entry in removed],
        },
    )


def _count(entries: list[store.Entry]) -> str:
    return f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'}"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _ago(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {unit}{'' if number == 1 else 's'} ago"
    return "just now"
