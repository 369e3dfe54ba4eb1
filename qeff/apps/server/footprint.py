"""How much memory an opened model takes: its weights, and its cache when that is full."""

from __future__ import annotations

from qeff.container import Container

NUMBER_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "mxint8": 1.0625}


def num_bytes(container: Container, cache_tokens: int | None = None) -> int:
    """The memory of a container; ``cache_tokens`` are those of all sequences together."""
    num_tokens = cache_tokens or full_tokens(container)
    return weight_bytes(container) + int(token_bytes(container) * num_tokens)


def cache_tokens_within(container: Container, budget: int) -> int | None:
    """How many tokens the cache may hold; None where all that it could be asked for fit."""
    room = int(max(0, budget - weight_bytes(container)) / token_bytes(container))
    if room >= full_tokens(container):
        return None
    return max(room, container.manifest.options.ctx_len)  # less than one context is no use


def full_tokens(container: Container) -> int:
    """A whole context for every sequence."""
    options = container.manifest.options
    return options.num_slots * options.ctx_len


def weight_bytes(container: Container) -> int:
    """The files, which are mapped."""
    return sum(entry.size for entry in container.manifest.files.values())


def token_bytes(container: Container) -> float:
    """What the caches of all layers hold of one token."""
    manifest = container.manifest
    each = NUMBER_BYTES.get(manifest.options.kv_precision, 2.0)
    return each * sum(
        layer.num_kv_heads * (layer.key_dim + layer.value_dim) for layer in manifest.model.caches
    )
