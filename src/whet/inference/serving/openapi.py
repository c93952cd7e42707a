"""Describes the server's addresses as OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from whet.inference.serving.requests import Limits

_PROBLEMS = {
    "400": "The body is not JSON, or the Host header is strange.",
    "401": "The bearer token is missing or wrong.",
    "408": "The request did not arrive in time.",
    "413": "The body is too large, or has too many inputs.",
    "415": "The body is not declared as application/json.",
    "422": "The JSON is not what is expected.",
    "503": "Not ready, or too many requests wait: try again after Retry-After seconds.",
    "504": "The deadline came first.",
}


def describe(version: str, limits: Limits, labels: tuple[str, ...], pairs: bool | None, token: bool) -> dict[str, Any]:
    """Return the document for this model and these limits."""
    text = {"type": "string", "minLength": 1, "maxLength": limits.characters}
    pair = {"type": "array", "items": text, "minItems": 2, "maxItems": 2}
    row = {True: pair, False: text, None: {"oneOf": [text, pair]}}[pairs]
    label = {"type": "string", **({"enum": list(labels)} if labels else {})}
    prediction = {
        "type": "object",
        "required": ["label", "probability", "probabilities"],
        "properties": {
            "label": {"oneOf": [label, {"type": "array", "items": label}, {"type": "number"}]},
            "probability": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
            "probabilities": {"type": "object", "additionalProperties": {"type": "number"}},
            "abstain": {"type": "boolean", "description": "Whether the row should be left to a person."},
            "candidates": {
                "type": "array",
                "description": "The labels of the conformal set, or low and high of a number.",
            },
        },
    }
    asked = {
        "type": "object",
        "required": ["inputs"],
        "additionalProperties": False,
        "properties": {
            "inputs": {"oneOf": [text, {"type": "array", "items": row, "maxItems": limits.rows}]},
            "raw": {"type": "boolean", "default": False, "description": "Probabilities without calibration."},
            "deadline_seconds": {
                "type": "number", "exclusiveMinimum": 0, "maximum": limits.deadline_seconds,
                "default": limits.deadline_seconds,
            },
        },
    }  # fmt: skip
    answered = {"type": "object", "properties": {"predictions": {"type": "array", "items": prediction}}}
    predict = {
        "summary": "Label texts, in order.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": asked}}},
        "responses": {
            "200": {"description": "One prediction an input.", "content": {"application/json": {"schema": answered}}},
            **{status: _problem(meaning) for status, meaning in _PROBLEMS.items()},
        },
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "whet serve", "version": version},
        "paths": {
            "/predict": {"post": predict},
            "/model": {"get": _plain("The model's labels, whether it reads pairs, and the limits.")},
            "/health": {"get": _plain("200 while the process answers.")},
            "/ready": {"get": {**_plain("200 if the model answers."), "summary": "503 while it loads or drains."}},
            "/metrics": {"get": _plain("Counters for Prometheus.", "text/plain")},
        },
    }
    if token:
        document["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        for path, method in (("/predict", "post"), ("/model", "get"), ("/metrics", "get")):
            document["paths"][path][method]["security"] = [{"token": []}]
    return document


def _problem(meaning: str) -> dict[str, Any]:
    return {"description": meaning, "content": {"application/problem+json": {"schema": {"type": "object"}}}}


def _plain(meaning: str, kind: str = "application/json") -> dict[str, Any]:
    return {"responses": {"200": {"description": meaning, "content": {kind: {}}}}}
