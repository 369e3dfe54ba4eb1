"""The OpenAPI document: every operation with the shape of its body and of its errors.

Made when it is first asked for. Knows nothing of what operations do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from qeff._version import __version__
from qeff.apps.server.failure import DESCRIPTIONS, AnthropicFailure, OpenAIFailure
from qeff.apps.server.routing import EVENTS, JSON, Operation

REFERENCE = "#/components/schemas/{model}"
_NAMED_PART = re.compile(r"{(\w+)(?::\w+)?}")


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document of these operations."""
    shown = [one for one in operations if one.is_shown]
    wanted: set[Any] = {one.shape for one in shown if one.shape is not None}
    wanted |= {OpenAIFailure, AnthropicFailure}
    references, definitions = models_json_schema(
        [(one, "validation") for one in sorted(wanted, key=lambda one: one.__qualname__)],
        ref_template=REFERENCE,
    )
    known = {shape: schema for (shape, _), schema in references.items()}
    paths: dict[str, Any] = {}
    for one in shown:
        path = _NAMED_PART.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _described(one, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "qeff", "version": __version__},
        "paths": paths,
        "components": {"schemas": definitions["$defs"]},
    }


def _described(one: Operation, known: Mapping[Any, Any]) -> dict[str, Any]:
    name = one.answer.__name__
    found: dict[str, Any] = {
        "tags": [one.tag],
        "summary": name.replace("_", " ").capitalize(),
        "description": one.answer.__doc__,
        "operationId": name,
    }
    if parts := _NAMED_PART.findall(one.path):
        found["parameters"] = [
            {"name": part, "in": "path", "required": True, "schema": {"type": "string"}}
            for part in parts
        ]
    if one.shape is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": known[one.shape]}}}
    either = {"anyOf": [known[OpenAIFailure], known[AnthropicFailure]]}
    answer = "The answer, as a whole or as a stream." if EVENTS in one.media else "The answer."
    found["responses"] = {
        "200": {"description": answer, "content": {kind: {} for kind in one.media}},
        **{
            status: {"description": text, "content": {JSON: {"schema": either}}}
            for status, text in DESCRIPTIONS.items()
        },
    }
    return found
