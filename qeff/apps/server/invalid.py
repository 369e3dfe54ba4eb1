"""What is wrong with the fields of a request, as one sentence that names the field.

The checker of shapes lists everything that it tried, with the names of its alternatives; here it is
one thing, at a place of the request as its sender wrote it. Knows nothing of the shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qeff.apps.server.errors import ApiError, bad_request, sentence

MAX_SHOWN = 120  # characters of a place


def invalid(errors: Sequence[Mapping[str, Any]], body: Any) -> ApiError:
    """The error for the first field that is wrong."""
    first = errors[0]["loc"][:1]
    # Of the alternatives for one field, the one that fits best is what was meant.
    same = [error for error in errors if error["loc"][:1] == first]
    error = max(same, key=_fitness)
    param = _written(error, body)[:MAX_SHOWN] or None
    said = str(error["msg"]).removeprefix("Value error, ")
    return bad_request(sentence(said if param is None else f"{param}: {said}"), param)


def _fitness(error: Mapping[str, Any]) -> tuple[bool, int]:
    """A right type with a wrong value before a wrong type, then what went wrong further inside."""
    return not str(error["type"]).endswith("_type"), len(error["loc"])


def _written(error: Mapping[str, Any], body: Any) -> str:
    """The place as it is in the request: names of alternatives are no part of it."""
    found = ""
    value = body
    places = error["loc"]
    for index, part in enumerate(places):
        is_missing = error["type"] == "missing" and index == len(places) - 1
        if isinstance(value, Mapping) and (part in value or is_missing):
            found += f".{part}" if found else str(part)
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            found += f"[{part}]"
            value = value[part]
    return found or ".".join(map(str, places[:1]))
