"""What an output has to fit, from whichever field of a request says it.

OpenAI's ``response_format``, vLLM's ``structured_outputs`` and ``guided_*``, llama.cpp's
``grammar`` and ``json_schema``. Knows nothing of tools and prompts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from qeff.apps.server.errors import bad_request, from_qeff
from qeff.apps.server.fit import Fit
from qeff.apps.server.openai.chat_shapes import (
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponseFormat,
    StructuredFields,
)
from qeff.core.errors import QeffError, RequestError
from qeff.generate import Constraint
from qeff.generate.constraint import ConstraintKind

MAX_PATTERN = 32_768  # characters; the time to compile grows with the square
MAX_DEFINITION = 131_072
Maker = Callable[[Any], Constraint]


def fit_of(fields: StructuredFields, response_format: ResponseFormat | None = None) -> Fit:
    """The one constraint of a request; refuses several."""
    found = dict(_named(fields))
    from_format = _of_format(response_format)
    if from_format is not None:
        found["response_format"] = from_format
    if len(found) > 1:
        names = " and ".join(sorted(found))
        raise bad_request(f"Only one of {names} can say what the output has to fit.", min(found))
    for name, (make, value) in found.items():
        return fit(name, make, value)
    return Fit()


def fit(field: str, make: Maker, value: Any) -> Fit:
    """The constraint that a field asks for; refuses what would take too long to compile."""
    try:
        constraint = make(value)
    except QeffError as error:
        raise from_qeff(error, field) from None
    most = MAX_PATTERN if constraint.kind is ConstraintKind.REGEX else MAX_DEFINITION
    if len(constraint.definition) > most:
        raise bad_request(f"The {constraint.kind} has more than {most} characters.", field)
    return Fit(constraint, field)


def _of_format(response_format: ResponseFormat | None) -> tuple[Maker, Any] | None:
    if isinstance(response_format, JsonSchemaFormat):
        schema = response_format.json_schema.schema_
        return Constraint.json_schema, {} if schema is None else schema
    if isinstance(response_format, JsonObjectFormat):
        if response_format.schema_ is not None:
            return Constraint.json_schema, response_format.schema_
        return _any_object, None
    return None


def _named(fields: StructuredFields) -> list[tuple[str, tuple[Maker, Any]]]:
    given: list[tuple[str, Maker, Any]] = [
        ("guided_json", _schema, fields.guided_json),
        ("guided_regex", Constraint.regex, fields.guided_regex),
        ("guided_choice", Constraint.choice, fields.guided_choice),
        ("guided_grammar", Constraint.grammar, fields.guided_grammar),
        ("grammar", Constraint.grammar, fields.grammar or None),
        ("json_schema", Constraint.json_schema, fields.json_schema),
    ]
    wanted = fields.structured_outputs
    if wanted is not None:
        prefix = "structured_outputs"
        given += [
            (f"{prefix}.json", _schema, wanted.json_),
            (f"{prefix}.json_object", _any_object, wanted.json_object or None),
            (f"{prefix}.regex", Constraint.regex, wanted.regex),
            (f"{prefix}.choice", Constraint.choice, wanted.choice),
            (f"{prefix}.grammar", Constraint.grammar, wanted.grammar),
        ]
    return [(name, (make, value)) for name, make, value in given if value is not None]


def _schema(value: str | dict[str, Any]) -> Constraint:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the JSON schema is no JSON: {error}") from None
        if not isinstance(value, dict | bool):
            raise RequestError("the JSON schema is no JSON object")
    return Constraint.json_schema(value)


def _any_object(_: object) -> Constraint:
    return Constraint.json_object()
