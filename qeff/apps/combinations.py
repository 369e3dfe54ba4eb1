"""Which parameters of the Python class go together: QEfficient's table, before any work.

Each rule raises what is documented there (TypeError, ValueError, NotImplementedError) with a
sentence of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from qeff.core.errors import (
    OptionNotSupported,
    OptionTypeError,
    OptionValueError,
    nearest,
    unknown_name,
)
from qeff.core.progress import log

QAIC_CONFIG = (
    "speculative_model_type",
    "include_sampler",
    "return_pdfs",
    "max_top_k_ids",
    "include_guided_decoding",
    "num_kv_heads_repeat",
    "num_replicate_kv_heads",
    "enable_blocking",
    "blocking_mode",
    "num_kv_blocks",
    "head_block_size",
    "ccl_enabled",
    "pretrained_model_name_or_path",
)

# Verifies guesses of others, or brings heads that guess.
SPECULATIVE_MODEL_TYPES = ("target", "turbo")

# Arguments of Hugging Face's from_pretrained that say how to load. The checkpoint is mapped here
# and keeps its own number format until compile, so that they change nothing.
LOADING = (
    "attn_implementation",
    "device_map",
    "dtype",
    "enable_proxy",
    "low_cpu_mem_usage",
    "torch_dtype",
    "use_cache",
    "use_safetensors",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of ``compile`` that depend on each other; checked when they are put together.

    Raises what QEfficient documents for a combination that it refuses.
    """

    continuous_batching: bool
    qaic_config: Mapping[str, Any]
    prefill_seq_len: int
    full_batch_size: int | None
    kv_cache_batch_size: int | None
    num_speculative_tokens: int | Sequence[int] | None
    comp_ctx_lengths_decode: Sequence[int] | None
    prefill_only: bool | None
    kv_cache_prefix: str | None
    comp_ctx_lengths_prefill: Sequence[int] | None = None
    ctx_len: int = 128

    def __post_init__(self) -> None:
        _check_batching(self)
        _check_speculation(self)
        check_context_lengths(
            self.ctx_len,
            is_enabled=bool(self.qaic_config.get("ccl_enabled")),
            comp_ctx_lengths_prefill=self.comp_ctx_lengths_prefill,
            comp_ctx_lengths_decode=self.comp_ctx_lengths_decode,
        )
        prefix = self.kv_cache_prefix
        if prefix is not None and not (isinstance(prefix, str) and prefix.isalnum()):
            raise OptionValueError(f"kv_cache_prefix must be letters and digits, not {prefix!r}")

    @property
    def is_target_model(self) -> bool:
        return self.qaic_config.get("speculative_model_type") == "target"

    @property
    def most_speculative_tokens(self) -> int | None:
        """How many tokens a draft proposes at most, when this is a target model."""
        asked = self.num_speculative_tokens
        if not self.is_target_model or asked is None:
            return None
        return asked if isinstance(asked, int) else max(asked)

    def vendor_options(self) -> dict[str, Any]:
        """The part that only shapes a vendor's program."""
        names = (
            "num_speculative_tokens",
            "comp_ctx_lengths_decode",
            "comp_ctx_lengths_prefill",
            "prefill_only",
            "kv_cache_prefix",
        )
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value}


def _check_batching(shape: Shape) -> None:
    if shape.prefill_only is not None and not isinstance(shape.prefill_only, bool):
        raise OptionTypeError(f"prefill_only must be True or False, not {shape.prefill_only!r}")
    has_slots = shape.full_batch_size is not None or shape.kv_cache_batch_size is not None
    if shape.prefill_only and shape.continuous_batching and not has_slots:
        raise OptionValueError(
            "prefill_only with continuous batching needs kv_cache_batch_size or full_batch_size",
            "give the number of sequences that share the cache",
        )
    if shape.continuous_batching and shape.full_batch_size is None and not shape.prefill_only:
        raise OptionTypeError(
            "continuous batching needs full_batch_size",
            "give the number of sequences that share the cache, such as full_batch_size=4",
        )
    if shape.full_batch_size is not None and not shape.continuous_batching:
        log.warning(
            "full_batch_size is ignored: continuous_batching=True was not given to from_pretrained"
        )


def _check_speculation(shape: Shape) -> None:
    asked = shape.num_speculative_tokens
    if not shape.is_target_model:
        return  # without a target model the number has no meaning, and QEfficient ignores it
    if asked is None:
        raise OptionTypeError(
            "a target model of speculative decoding needs num_speculative_tokens",
            "give how many tokens the draft proposes, such as num_speculative_tokens=3",
        )
    counts = [asked] if isinstance(asked, int) else list(asked)
    if not counts or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in counts):
        raise OptionTypeError(f"num_speculative_tokens must be whole numbers, not {asked!r}")
    if shape.prefill_seq_len < max(counts) + 1:
        raise OptionValueError(
            f"prefill_seq_len {shape.prefill_seq_len} is smaller than "
            f"num_speculative_tokens + 1 = {max(counts) + 1}"
        )
    if max(counts) > 0 and shape.qaic_config.get("include_sampler"):
        raise OptionValueError(
            "sampling in the program and speculative decoding exclude each other"
        )
    if not isinstance(asked, int) and shape.comp_ctx_lengths_decode is not None:
        raise OptionNotSupported(
            "a list of num_speculative_tokens does not go with comp_ctx_lengths_decode"
        )


def check_context_lengths(
    ctx_len: int, *, is_enabled: bool = False, **lists: Sequence[int] | None
) -> None:
    """Refuse lists of context lengths that make no sense; say once that they are not needed."""
    given = {name: list(values) for name, values in lists.items() if values is not None}
    for name, values in given.items():
        if not values or any(isinstance(n, bool) or not isinstance(n, int) for n in values):
            raise OptionTypeError(f"{name} must be whole numbers, not {values!r}")
        if values[0] < 1 or any(b <= a for a, b in pairwise(values)):
            raise OptionValueError(f"{name} must rise, from at least 1: {values!r}")
        if isinstance(ctx_len, int) and values[-1] > ctx_len:
            raise OptionValueError(f"{name} goes up to {values[-1]}, but ctx_len is {ctx_len}")
    names = [*given, *(["ccl_enabled"] if is_enabled else [])]
    if names:
        log.warning(
            "not needed here: %s; attention reads no more of the cache than is in use",
            ", ".join(names),
        )


def with_ccl(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with ``ccl_enabled``, which ``compile`` takes too."""
    return {**config, **({"ccl_enabled": True} if options.get("ccl_enabled") else {})}


def check_qaic_config(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration, after its names were checked."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise OptionTypeError(f"qaic_config must be a dictionary, not {config!r}")
    check_names("key of qaic_config", config, QAIC_CONFIG)
    kind = config.get("speculative_model_type")
    if kind is not None and kind not in SPECULATIVE_MODEL_TYPES:
        raise unknown_name("speculative_model_type", str(kind), SPECULATIVE_MODEL_TYPES)
    return dict(config)


def check_names(what: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise a TypeError with the nearest name for the first name that is not known."""
    for name in given:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close!r}?" if close else f"known: {', '.join(known)}"
            raise OptionTypeError(f"unknown {what} {name!r}", hint)


def same(asked: str | None, alias: str | None, name: str) -> str:
    """One setting that two parameters may name; ``auto`` when neither does."""
    if asked and alias and asked != alias:
        raise OptionValueError(f"{name} {asked} and {alias} exclude each other", "give one of them")
    return asked or alias or "auto"
