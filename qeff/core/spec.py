"""What a model is, said without torch: sizes, caches, and the names at a graph's border.

The signature is QEfficient's contract: ``input_ids`` and ``position_ids`` [batch, seq] (−1 marks
padding), ``batch_index`` [batch, 1] when batching is continuous, ``past_key.i`` and
``past_value.i`` [slots, kv heads, ctx_len, head dim]; out come ``logits`` and every cache again
as ``…_RetainedState``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
BATCH_INDEX = "batch_index"
LOGITS = "logits"
LOGITS_INDEX = "logits_index"  # of a compiled program that computes only the wanted rows
RETAINED = "_RetainedState"

# Names of the symbolic axes of every graph.
AXIS_BATCH = "batch_size"
AXIS_SEQ = "seq_len"
AXIS_CTX = "ctx_len"
AXIS_SLOTS = "full_batch_size"  # equals AXIS_BATCH when batching is not continuous


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """The key and value cache of one attention layer."""

    index: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int = 0  # how many tokens back a query sees; 0 = all

    @property
    def key_name(self) -> str:
        return f"past_key.{self.index}"

    @property
    def value_name(self) -> str:
        return f"past_value.{self.index}"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder: who it is, how large, and which caches it keeps."""

    name: str
    architecture: str
    model_type: str
    vocab_size: int
    num_layers: int
    num_params: int
    max_positions: int | None
    caches: tuple[CacheLayer, ...]

    def cache_names(self) -> list[str]:
        """Cache inputs in graph order: key then value, layer by layer."""
        return [name for layer in self.caches for name in (layer.key_name, layer.value_name)]

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "caches"}
        layers = [{name: getattr(layer, name) for name in layer.__slots__} for layer in self.caches]
        return {**fields, "caches": layers}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ModelSpec:
        layers = tuple(CacheLayer(**layer) for layer in data["caches"])
        return cls(**{**data, "caches": layers})
