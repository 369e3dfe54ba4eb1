"""The text files of a GGUF file: the tokenizer that transformers builds, and its special tokens.

Knows metadata keys of the GGUF format, not tensors.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from qeff.core.errors import SourceError
from qeff.sources.gguf_header import GgufHeader
from qeff.sources.library_border import LibraryBorder
from qeff.sources.tokenizer_text import describe_tokenizer

_TEMPLATE = "tokenizer.chat_template"
_ENDS = ("eos_token_id", "eot_token_id")  # end of the text, end of a turn


def read_gguf_text(header: GgufHeader) -> dict[str, bytes]:
    """Every text file that the metadata gives, by its usual name."""
    files: dict[str, bytes] = {}
    if "tokenizer.ggml.tokens" in header.array_lens:
        files |= _build_tokenizer(header)
        files["tokenizer_config.json"] = _with_metadata(files["tokenizer_config.json"], header)
    template = header.fields.get(_TEMPLATE)
    if isinstance(template, str):
        files["chat_template.jinja"] = template.encode()
    generation = json.dumps(describe_generation(header), indent=2)
    files["generation_config.json"] = generation.encode()
    return files


def describe_generation(header: GgufHeader) -> dict[str, Any]:
    """What a generation_config.json would say of special tokens."""
    found: dict[str, Any] = {}
    for key, name in (("bos_token_id", "bos_token_id"), ("padding_token_id", "pad_token_id")):
        token = header.whole_number(f"tokenizer.ggml.{key}")
        if token is not None:
            found[name] = token
    ends = [header.whole_number(f"tokenizer.ggml.{key}") for key in _ENDS]
    unique = list(dict.fromkeys(token for token in ends if token is not None))
    if unique:
        found["eos_token_id"] = unique[0] if len(unique) == 1 else unique
    return found


def _build_tokenizer(header: GgufHeader) -> dict[str, bytes]:
    # What AutoTokenizer ends at too, after it has read the whole config on its slow way.
    from transformers import PreTrainedTokenizerFast

    border = LibraryBorder(
        SourceError,
        f"the tokenizer of {header.path} cannot be read",
        "the file is damaged, or its kind of tokenizer is not supported",
    )
    # In a folder of its own, files that lie beside the GGUF file cannot take part.
    with tempfile.TemporaryDirectory() as folder, border:
        (Path(folder) / "model.gguf").symlink_to(header.path.resolve())
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            folder, gguf_file="model.gguf", local_files_only=True
        )
        return describe_tokenizer(tokenizer, str(header.path))


def _with_metadata(settings: bytes, header: GgufHeader) -> bytes:
    """Whether text begins with a token of its own: transformers leaves this metadata out."""
    merged = json.loads(settings)
    merged["add_bos_token"] = _flag(header, "add_bos_token", _has_bos_by_default(header))
    merged["add_eos_token"] = _flag(header, "add_eos_token", False)
    return json.dumps(merged, ensure_ascii=False, indent=2).encode()


def _flag(header: GgufHeader, key: str, default: bool) -> bool:
    value = header.fields.get(f"tokenizer.ggml.{key}", default)
    return value if isinstance(value, bool) else default


def _has_bos_by_default(header: GgufHeader) -> bool:
    """What the GGUF format means when it does not say."""
    is_sentencepiece = "tokenizer.ggml.scores" in header.array_lens
    split = header.fields.get("tokenizer.ggml.pre")
    return is_sentencepiece or split in ("llama3", "llama-v3", "llama-bpe")
