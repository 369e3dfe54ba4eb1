"""The config of a GGUF file, as transformers makes it from the metadata.

transformers' reader looks at each token of a vocabulary, which takes half a minute for a large one.
So it is shown a copy of the header without long arrays and with tensors of one value: names are all
it asks of them. What it would take from the vocabulary, the count, is put in here.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

from qeff.core.errors import SourceError, UnsupportedModel
from qeff.sources.gguf_header import GgufHeader
from qeff.sources.gguf_rope import read_rope_scaling
from qeff.sources.library_border import LibraryBorder

_LONG_ARRAY = 4096
_ALIGNMENT = 32  # what readers assume when the file does not say
_UINT32 = 4
_TOKENS = "tokenizer.ggml.tokens"


def read_gguf_config(header: GgufHeader) -> dict[str, Any]:
    """The contents of a config.json for this file."""
    _check_num_layers(header)
    from transformers import PreTrainedConfig

    border = LibraryBorder(
        UnsupportedModel,
        f"{header.path} has no config that transformers understands",
        f"GGUF files of the architecture {header.architecture!r} are not supported",
    )
    with tempfile.TemporaryDirectory() as folder, border:
        (Path(folder) / "header.gguf").write_bytes(_short_copy(header))
        config, _ = PreTrainedConfig.get_config_dict(
            folder, gguf_file="header.gguf", local_files_only=True
        )
        return _complete(dict(config), header)


def _complete(config: dict[str, Any], header: GgufHeader) -> dict[str, Any]:
    """Add sizes that the metadata has and transformers' tables leave to a class's default."""
    expert_len = header.whole_number(f"{header.architecture}.expert_feed_forward_length")
    known = {
        "vocab_size": header.array_lens.get(_TOKENS),
        "moe_intermediate_size": expert_len,
        "n_positions": config.get("n_ctx"),
        "rope_scaling": read_rope_scaling(header),
    }
    return {key: value for key, value in known.items() if value is not None} | config


def _check_num_layers(header: GgufHeader) -> None:
    """A layer has tensors; without this check a lying count would build layers without end."""
    num_layers = header.whole_number(f"{header.architecture}.block_count")
    if num_layers is None or not 0 < num_layers <= len(header.tensors):
        raise SourceError(
            f"{header.path} claims {num_layers} layers and holds {len(header.tensors)} tensors",
            "the file is damaged, or holds no whole model",
        )


def _short_copy(header: GgufHeader) -> bytes:
    """The same header in a few kilobytes."""
    fields = [
        _field_bytes(header, key)
        for key in header.places
        if header.array_lens.get(key, 0) <= _LONG_ARRAY and key != "general.alignment"
    ]
    vocab_key = f"{header.architecture}.vocab_size"
    if _TOKENS in header.array_lens and vocab_key not in header.places:
        size = header.array_lens[_TOKENS]
        fields.append(_text_bytes(vocab_key) + struct.pack("<II", _UINT32, size))
    # One axis of one f32 value, all at the same place.
    entry = struct.pack("<IQIQ", 1, 1, 0, 0)
    table = b"".join(_text_bytes(name) + entry for name in header.tensors)
    counts = struct.pack("<4sIQQ", b"GGUF", 3, len(header.tensors), len(fields))
    head = counts + b"".join(fields) + table
    return head + bytes(-len(head) % _ALIGNMENT + _ALIGNMENT)


def _field_bytes(header: GgufHeader, key: str) -> bytes:
    start, end = header.places[key]
    with header.path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


def _text_bytes(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
