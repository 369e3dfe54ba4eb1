"""The hash of what decides an export: config, and the names, shapes, formats and places of tensors.

No tensor value is part of it, so that it costs no reading.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from qeff.core.tensor import LazyTensor


def hash_header(config: Mapping[str, Any], tensors: Mapping[str, LazyTensor]) -> str:
    """SHA-256 over config and tensor descriptions; files count by name, not by folder."""
    rows = []
    for name in sorted(tensors):
        tensor = tensors[name]
        place = tensor.location
        where = [place.path.name, place.offset, place.length] if place else None
        rows.append([name, list(tensor.shape), tensor.format, where])
    text = json.dumps([config, rows], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
