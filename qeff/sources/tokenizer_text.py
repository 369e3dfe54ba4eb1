"""Writes a transformers tokenizer down as the files that the run half reads.

Knows tokenizers of transformers, not where they came from.
"""

from __future__ import annotations

import json
from typing import Any

from qeff.core.errors import SourceError

_SETTINGS = ("bos_token", "eos_token", "unk_token", "pad_token", "add_bos_token", "add_eos_token")


def describe_tokenizer(tokenizer: Any, where: str) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json that say the same as the object."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise SourceError(
            f"the tokenizer of {where} exists only as Python code",
            "add a tokenizer.json made with the tokenizers library",
        )
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name in _SETTINGS:
        value = getattr(tokenizer, name, None)
        if value is not None:
            settings[name] = value if isinstance(value, bool) else str(value)
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, str):
        settings["chat_template"] = template
    return {
        "tokenizer.json": backend.to_str().encode(),
        "tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=2).encode(),
    }
