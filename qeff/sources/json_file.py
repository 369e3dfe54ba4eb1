"""Reads JSON that came with a checkpoint and may be anything: missing, cut, or not an object.

Knows no keys; whoever asks checks what it needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qeff.core.errors import SourceError

_MAX_BYTES = 1 << 28  # an index of a very large model has some megabytes


def read_json_object(path: Path, hint: str) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SourceError(f"{path} is too large to be what its name says", hint)
        data = path.read_bytes()
    except FileNotFoundError:
        raise SourceError(f"{path} is missing", hint) from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}", hint) from error
    return parse_json_object(data, str(path), hint)


def parse_json_object(data: bytes, where: str, hint: str) -> dict[str, Any]:
    """The JSON object in some bytes; ``where`` names them in messages."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where} is not valid JSON: {_reason(error)}", hint) from None
    if not isinstance(value, dict):
        raise SourceError(f"{where} is not a JSON object", hint)
    return value


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
