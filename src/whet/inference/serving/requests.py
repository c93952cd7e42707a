"""Parses requests into rows; every invalid one raises a Problem."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NoReturn

from whet.data.readers.text_files import mend_surrogates
from whet.errors import nearest

Receive = Callable[[], Awaitable[Any]]
Headers = list[tuple[bytes, bytes]]

FIELDS = ("inputs", "raw", "deadline_seconds")


class Problem(Exception):
    """A response with a status of 4xx or 5xx in the format of RFC 9457. It never contains a text of the request."""

    def __init__(self, status: int, detail: str, *, headers: dict[str, str] | None = None, close: bool = False) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.close = status, detail, headers or {}, close
        """`close`: the rest of the request is not read."""

    def body(self) -> bytes:
        title = HTTPStatus(self.status).phrase
        content = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        return json.dumps(content).encode()


def busy(detail: str) -> Problem:
    """Overload: the client should try again shortly."""
    return Problem(503, detail, headers={"retry-after": "1"})


@dataclass(frozen=True)
class Limits:
    """Limits for one request."""

    body_bytes: int = 4_000_000
    rows: int = 4096
    characters: int = 100_000
    """Characters of one input, both texts together. Text beyond the model's length is cut, as in training."""
    read_seconds: float = 15.0
    """Time until the whole request has arrived."""
    deadline_seconds: float = 30.0
    """Time until it is answered."""


@dataclass(frozen=True)
class PredictRequest:
    """The rows of a valid request."""

    texts: list[str]
    pairs: list[str] | None
    raw: bool
    """Whether probabilities are uncalibrated."""
    seconds: float
    """Time limit for the response."""


@dataclass
class BodyMemory:
    """Memory of all request bodies, in bytes."""

    most: int
    now: int = field(default=0)

    def add(self, size: int) -> None:
        if self.now + size > self.most:
            raise Problem(503, "Too many large requests at a time.", headers={"retry-after": "1"}, close=True)
        self.now += size


def check_head(headers: Headers, limits: Limits) -> None:
    """Refuse a request by its headers, before its body is read."""
    kind = header(headers, b"content-type").split(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Problem(415, "Send JSON, with the header Content-Type: application/json.", close=True)
    if header(headers, b"content-encoding").lower() not in (b"", b"identity"):
        raise Problem(415, "Send the body as it is, without Content-Encoding.", close=True)
    length = header(headers, b"content-length")
    if length.isdigit() and int(length[:20]) > limits.body_bytes:
        raise _too_large(limits)


def header(headers: Headers, name: bytes) -> bytes:
    """Return the first header of that name, or None."""
    return next((value for key, value in headers if key == name), b"")


class Disconnected(Exception):
    """The client disconnected before its request was complete."""


async def read_body(receive: Receive, limits: Limits, held: BodyMemory, kept: list[int]) -> bytes:
    """Return the whole body. Its size is reserved in `held` and noted in `kept`, so that the caller can release it."""
    import asyncio

    body = bytearray()
    try:
        async with asyncio.timeout(limits.read_seconds):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                part = message.get("body", b"")
                if len(body) + len(part) > limits.body_bytes:
                    raise _too_large(limits)
                held.add(len(part))
                kept.append(len(part))
                body += part
                more = message.get("more_body", False)
    except TimeoutError:
        raise Problem(408, f"The request did not arrive within {limits.read_seconds:g} seconds.", close=True) from None
    return bytes(body)


def _too_large(limits: Limits) -> Problem:
    return Problem(413, f"The body is larger than {limits.body_bytes:,} bytes.", close=True)


def parse(body: bytes, limits: Limits, pairs: bool | None) -> PredictRequest:
    """Return the rows of a body. `pairs` is whether the model reads pairs; None if unknown."""
    content = _json(body)
    if not isinstance(content, dict):
        raise Problem(422, 'Send an object: {"inputs": ["a text", "another one"]}.')
    for name in content:
        if name not in FIELDS:
            raise Problem(422, f"There is no field {name[:40]!r}. {nearest(name[:40], FIELDS)}")
    if "inputs" not in content:
        raise Problem(422, "The field 'inputs' is missing.")
    inputs = content["inputs"]
    if isinstance(inputs, str):
        inputs = [inputs]
    if not isinstance(inputs, list):
        raise Problem(422, "'inputs' must be a list of texts, or of [text, text] for a model of pairs.")
    if len(inputs) > limits.rows:
        raise Problem(413, f"'inputs' has {len(inputs):,} rows, and {limits.rows:,} are allowed.")
    raw = content.get("raw", False)
    if not isinstance(raw, bool):
        raise Problem(422, "'raw' must be true or false.")
    texts, seconds = _texts(inputs, limits, pairs), _seconds(content, limits)
    return PredictRequest(texts[0], texts[1] if len(texts) > 1 else None, raw, seconds)


def _json(body: bytes) -> Any:
    def no_number(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(body.decode("utf-8"), parse_constant=no_number)
    except UnicodeDecodeError:
        raise Problem(400, "The body is not UTF-8.") from None
    except RecursionError:
        raise Problem(400, "The body is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise Problem(400, f"The body is not JSON: line {error.lineno}, column {error.colno}.") from None
    except ValueError:
        raise Problem(400, "The body is not JSON: it has a number that JSON does not allow.") from None


def _texts(inputs: list[Any], limits: Limits, pairs: bool | None) -> list[list[str]]:
    """Return one or two columns of texts."""
    if pairs is None:
        pairs = bool(inputs) and isinstance(inputs[0], list)
    columns: list[list[str]] = [[], []] if pairs else [[]]
    for index, row in enumerate(inputs):
        parts = row if pairs and isinstance(row, list) else [row]
        if len(parts) != len(columns) or not all(isinstance(part, str) for part in parts):
            wanted = 'two texts, ["a text", "another one"]' if pairs else "a text"
            raise Problem(422, f"inputs[{index}] must be {wanted}: that is what the model was trained on.")
        if not all(part.strip() for part in parts):
            raise Problem(422, f"inputs[{index}] has an empty text.")
        if sum(map(len, parts)) > limits.characters:
            raise Problem(422, f"inputs[{index}] is longer than {limits.characters:,} characters.")
        for column, part in zip(columns, parts, strict=True):
            column.append(part if part.isascii() else mend_surrogates(part)[0])
    return columns


def _seconds(content: dict[str, Any], limits: Limits) -> float:
    found = content.get("deadline_seconds", limits.deadline_seconds)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found <= limits.deadline_seconds:
        raise Problem(422, f"'deadline_seconds' must be above 0 and at most {limits.deadline_seconds:g}.")
    return float(found)
