"""The review page: a small server on this machine that shows suspicious rows and keeps what is decided about them.

It listens on 127.0.0.1 and nowhere else, and answers only to its own name and origin, as the live page does. A
decision is answered once it is on the disk.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from whet.errors import WhetError, missing_extra
from whet.runs.label_errors import Suspects
from whet.runs.live.server import guarded
from whet.runs.review.decisions import Decisions
from whet.runs.served_page import page_files
from whet.utils.review_file import DECISIONS
from whet.utils.text import json_text, neutral_lines
from whet.utils.untrusted_files import parse_json
from whet.utils.web_server import Server, listen, run_in_background

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_BODY = 10_000
"""Bytes of a decision: a row number and a word."""


def start(name: str, suspects: Suspects, decisions: Decisions, port: int = 0) -> Server:
    """Serve the page of one run from another thread; port 0 takes a free one."""
    return run_in_background(
        lambda port: make_app(name, suspects, decisions, port),
        listen(port),
        name="whet-review-page",
        purpose="The review page",
        leaving=lambda: None,
        grace_seconds=2,
        limit_concurrency=100,
    )


def make_app(name: str, suspects: Suspects, decisions: Decisions, port: int) -> Any:
    """The application: the page, its rows, and the decisions that it sends, behind the check of who asks."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise missing_extra("starlette", "serve", "The review page") from None
    pages = _Pages(name, suspects, decisions)
    routes = [
        Route("/", pages.index),
        Route("/assets/{name}", pages.asset),
        Route("/api/rows", pages.rows),
        Route("/api/decisions", pages.decide, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return guarded(app, port)


class _Pages:
    """One method per route."""

    def __init__(self, name: str, suspects: Suspects, decisions: Decisions) -> None:
        self.name, self.suspects, self.decisions = name, suspects, decisions
        self.files = page_files("whet.runs.review", "review")

    async def index(self, request: Request) -> Response:
        return self._file("index.html")

    async def asset(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    async def rows(self, request: Request) -> Response:
        shown = [
            {
                "row": each.row,
                "text": neutral_lines(each.text),
                "pair": None if each.pair is None else neutral_lines(each.pair),
                "given": neutral_lines(each.given),
                "likely": neutral_lines(each.likely),
                "probability": each.probability,
                "decision": self.decisions.decided.get(each.row, ""),
            }
            for each in self.suspects.rows
        ]
        about = {"name": neutral_lines(self.name), "sentence": self.suspects.sentence(), "rows": shown}
        return _answer(json_text(about), "application/json")

    async def decide(self, request: Request) -> Response:
        """Keep `{"row": 17, "decision": "accept"}`; an empty decision takes one back."""
        if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            return _answer("Send JSON.\n", status=415)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                return _answer("A decision is a row and a word.\n", status=413)
        try:
            content = parse_json(body)
            row, decision = content["row"], content["decision"]
        except (ValueError, TypeError, KeyError):
            return _answer("A decision is a row and a word.\n", status=400)
        if type(row) is not int or row not in self.decisions.suspects or decision not in ("", *DECISIONS):
            return _answer("There is no such row or decision.\n", status=400)
        try:
            await asyncio.to_thread(self.decisions.decide, row, decision)
        except WhetError as error:
            return _answer(f"{error.message} {error.hint}\n", status=507)
        return _answer(json_text({"row": row, "decision": decision}), "application/json")

    def _file(self, name: str) -> Response:
        if name not in self.files:
            return _answer("There is nothing here.\n", status=404)
        return _answer(self.files[name].content, self.files[name].kind)


def _answer(content: str | bytes, kind: str = "text/plain", status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(content, media_type=kind, status_code=status)
