"""The files of the pages that servers show: one head for all, the shared style, and what each page has of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath

from whet.runs.report.html import asset

KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
}


@dataclass(frozen=True)
class PageFile:
    """Content and media type of a file."""

    content: bytes
    kind: str


def page_files(package: str, name: str, *, title: str = "whet", scripts: Sequence[str] = ()) -> dict[str, PageFile]:
    """Return the files of a page: `index.html` and those that it loads from /assets/.

    The package has a folder `page` with `body.html`, NAME.css and NAME.js; `scripts` are those of the report that the
    page loads before its own.
    """
    texts = {each: asset(each) for each in ("base.css", "icon.svg", *scripts)}
    texts |= {each: _own(package, each) for each in (f"{name}.css", f"{name}.js")}
    parts = {
        "title": title,
        "styles": [f'<link rel="stylesheet" href="/assets/{each}">' for each in texts if each.endswith(".css")],
        "scripts": [f'<script src="/assets/{each}"></script>' for each in texts if each.endswith(".js")],
        "body": _own(package, "body.html").rstrip("\n"),
    }
    page = asset("served.html")
    for part, content in parts.items():
        page = page.replace(f"{{{{ {part} }}}}", content if isinstance(content, str) else "\n".join(content))
    texts["index.html"] = page
    return {each: PageFile(text.encode(), KINDS[PurePath(each).suffix]) for each, text in texts.items()}


def _own(package: str, name: str) -> str:
    return (files(package) / "page" / name).read_text(encoding="utf-8")
