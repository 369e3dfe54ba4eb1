"""Names, limits and the one JSON spelling of the container format.

Everything here is part of the contract in ``docs/container.md``; a change that old readers cannot
follow raises ``VERSION``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

VERSION = 1
KIND = "qeff container"

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
CERTIFICATE = "certificate.json"
SPECIALIZATIONS = "specializations.json"

MAX_MANIFEST_BYTES = 16 << 20
MAX_HEADER_BYTES = 100 << 20
MAX_FILES = 1000
ALIGNMENT = 64  # of every tensor in the weights file, from the start of the file
CHUNK_BYTES = 8 << 20

HINT = "compile again"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


def is_file_name(name: object) -> bool:
    """Whether a name stays inside the folder: no separator, no leading dot, plain letters."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def encode_json(data: Any) -> bytes:
    """The one spelling of a JSON value: sorted keys, two spaces, a newline at the end."""
    text = json.dumps(data, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def chunks(file: BinaryIO, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The rest of a file in pieces."""
    while piece := file.read(size):
        yield piece


def hash_file(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in chunks(file):
            digest.update(piece)
    return digest.hexdigest()
