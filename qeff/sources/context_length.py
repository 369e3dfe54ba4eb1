"""How long a context a checkpoint was made for, from its metadata alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qeff.sources.gguf_header import read_gguf_header
from qeff.sources.json_file import read_json_object
from qeff.sources.location import CONFIG, GGUF, Location

NAMES = ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length", "n_ctx")


def context_length(location: Location) -> int | None:
    """The most tokens that a model was made for; None where it does not say."""
    if location.kind == GGUF:
        header = read_gguf_header(location.path)
        return header.whole_number(f"{header.architecture}.context_length")
    config: Mapping[str, Any] = read_json_object(
        location.path / CONFIG, "a checkpoint folder has a config.json"
    )
    inner = config.get("text_config")
    for part in (inner if isinstance(inner, Mapping) else {}, config):
        for name in NAMES:
            value = part.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
