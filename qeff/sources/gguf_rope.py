"""How a GGUF file scales rotary embeddings, as the ``rope_scaling`` of a Hugging Face config.

transformers' tables leave it out: a model would run with unscaled frequencies, wrong from the
first tokens on. It lies in metadata (linear, yarn) or as tensors of divisors, one for each
frequency: ``rope_freqs`` for texts of any length (Llama 3), ``rope_factors_*`` for short and long.
"""

from __future__ import annotations

from typing import Any

from qeff.core.errors import UnsupportedModel
from qeff.sources.gguf_header import GgufHeader
from qeff.sources.gguf_tensor import values_of

_ALWAYS = "rope_freqs.weight"
_ENDLESS = 1e9  # a divisor that stands for a frequency which is not used
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"


def read_rope_scaling(header: GgufHeader) -> dict[str, Any] | None:
    """The ``rope_scaling`` of a config; None where frequencies are plain."""
    if _ALWAYS in header.tensors:
        factors = _divisors(header, _ALWAYS)
        if max(factors) >= _ENDLESS:
            return None  # the config's own default has heads that are turned in part
        # Both lists are the same, so that the length which divides them does not count.
        return _by_divisors(header, factors, factors, attention_factor=1.0)
    if _SHORT in header.tensors and _LONG in header.tensors:
        attention = _number(header, "attn_factor")
        return _by_divisors(header, _divisors(header, _SHORT), _divisors(header, _LONG), attention)
    kind = header.fields.get(_key(header, "type"), "none")
    factor = _number(header, "factor") or 1.0
    if kind == "none" or factor == 1.0:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = {"original_max_position_embeddings": _original_len(header)}
        return {"rope_type": "yarn", "factor": factor, **original}
    raise UnsupportedModel(
        f"{header.path} scales its rotary embeddings by {kind!r}, which is not read",
        "take the model's safetensors",
    )


def _by_divisors(
    header: GgufHeader, short: list[float], long: list[float], attention_factor: float | None
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": _original_len(header),
    }
    return made if attention_factor is None else {**made, "attention_factor": attention_factor}


def _divisors(header: GgufHeader, name: str) -> list[float]:
    values: list[float] = values_of(header.tensors[name]).reshape(-1).tolist()
    return values


def _original_len(header: GgufHeader) -> int:
    """The longest text before the scaling, or the longest at all."""
    whole = header.whole_number(f"{header.architecture}.context_length")
    return header.whole_number(_key(header, "original_context_length")) or whole or 1


def _number(header: GgufHeader, name: str) -> float | None:
    value = header.fields.get(_key(header, name))
    return float(value) if isinstance(value, int | float) else None


def _key(header: GgufHeader, name: str) -> str:
    return f"{header.architecture}.rope.scaling.{name}"
