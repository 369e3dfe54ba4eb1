"""Caches as graph state: layers that write into the cache inputs, and layers that only watch.

A dry run with watching layers finds which layers keep keys and values and how large they are,
whatever the architecture (latent attention, heads that differ by layer, shared caches).
Knows nothing about masks.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from qeff.core.errors import UnsupportedModel
from qeff.core.spec import CacheLayer
from qeff.transform.trace import Step

MAX_LAYERS = 1024


class _Layer(CacheLayerMixin):
    """What both kinds of layer answer in the same way."""

    is_sliding = False
    is_compileable = False
    keys: Any
    values: Any

    def __init__(self) -> None:
        super().__init__()
        self.is_initialized = True

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to allocate: the caches are inputs."""

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1


class GraphLayer(_Layer):
    """Keys and values written into the graph's cache inputs."""

    def __init__(self, step: Step, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.step, self.keys, self.values = step, keys, values

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys = self._write(self.keys, key_states)
        self.values = self._write(self.values, value_states)
        return self._read(self.keys), self._read(self.values)

    def _write(self, cache: Tensor, update: Tensor) -> Tensor:
        ops, step = torch.ops.qeff, self.step
        if step.batch_index is None:
            return ops.cache_write(cache, update, step.position_ids)
        return ops.cache_write_at(cache, update, step.position_ids, step.batch_index)

    def _read(self, cache: Tensor) -> Tensor:
        index = self.step.batch_index
        return cache if index is None else torch.index_select(cache, 0, index[:, 0])

    def get_mask_sizes(self, query_len: Any) -> tuple[Any, int]:
        return self.keys.shape[2], 0


class WatchLayer(_Layer):
    """Keeps what it is given, to learn the shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = self.values = None
        self.is_initialized = False  # a model may ask whether a layer was used

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys, self.values, self.is_initialized = key_states, value_states, True
        return key_states, value_states

    def get_mask_sizes(self, query_len: Any) -> tuple[Any, int]:
        return query_len, 0


class _AttentionOnly(Cache):
    """A cache that refuses every state but keys and values."""

    def _refuse(self, layer_idx: int = 0, *args: Any, **kwargs: Any) -> NoReturn:
        idx = (
            layer_idx if isinstance(layer_idx, int) else next(a for a in args if isinstance(a, int))
        )
        raise UnsupportedModel(
            f"layer {idx} keeps a recurrent or convolution state, which cannot be exported",
            "only layers with a key and value cache are supported",
        )

    def _refuse_states(self, states: Tensor, layer_idx: int = 0, *args: Any, **kw: Any) -> NoReturn:
        self._refuse(layer_idx)

    get_conv_state: Any = _refuse
    get_recurrent_state: Any = _refuse
    has_previous_state: Any = _refuse
    update_conv_state: Any = _refuse_states
    update_recurrent_state: Any = _refuse_states
    update_indexer: Any = _refuse_states


def watching_cache() -> Cache:
    """A cache for a dry run."""
    return _AttentionOnly(layers=[WatchLayer() for _ in range(MAX_LAYERS)])


def seen_layers(cache: Cache) -> tuple[CacheLayer, ...]:
    """What a dry run has put into a watching cache."""
    found = []
    seen: list[Any] = cache.layers
    for i, layer in enumerate(seen):
        if layer.keys is None:
            continue
        if layer.keys.dim() != 4 or layer.values.dim() != 4:
            raise UnsupportedModel(
                f"layer {i} caches keys of {layer.keys.dim()} axes, not [batch, heads, seq, dim]"
            )
        heads, key_dim, value_dim = layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]
        if layer.values.shape[1] != heads:
            raise UnsupportedModel(f"layer {i} caches unequal numbers of key and value heads")
        found.append(CacheLayer(i, int(heads), int(key_dim), int(value_dim)))
    return tuple(found)


def make_cache(step: Step, layers: tuple[CacheLayer, ...], tensors: list[Tensor]) -> Cache:
    """The cache that a traced forward pass writes into; ``tensors`` are key and value by turns."""
    all_layers: list[Any] = [WatchLayer() for _ in range(max(x.index for x in layers) + 1)]
    for j, layer in enumerate(layers):
        all_layers[layer.index] = GraphLayer(step, tensors[2 * j], tensors[2 * j + 1])
    return _AttentionOnly(layers=all_layers)
