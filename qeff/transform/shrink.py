"""A small config of the same architecture: every feature kept, every size reduced.

The result serves as the *twin* of a model that is too large to check with its own weights, and as
the test case for an architecture. It knows names that configs use for sizes, not architectures: a
name that is missing here leaves a size as it is, which is slower but right.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

HEADS, HEAD_DIM, WINDOW, VOCAB, POSITIONS = 4, 16, 4, 128, 64
HIDDEN = HEADS * HEAD_DIM

QUERY_HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads",
    "encoder_attention_heads",
)  # fmt: skip
KV_HEADS = (
    "num_key_value_heads", "num_kv_heads", "n_head_kv", "num_global_key_value_heads",
    "swa_num_key_value_heads",
)  # fmt: skip
LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers",
)  # fmt: skip
TOKEN_IDS = (
    "pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "unk_token_id",
    "decoder_start_token_id",
)  # fmt: skip

# Sizes by meaning: what a size becomes, unless it was smaller.
SIZES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (VOCAB, (
        "vocab_size", "vocab_size_per_layer_input", "text_vocab_size", "n_tokens",
        "decoder_vocab_size",
    )),
    (HIDDEN, (
        "hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim",
        "emb_dim", "dim_model", "embed_dim", "embedding_dim", "attention_hidden_size",
    )),
    (96, (
        "intermediate_size", "ffn_dim", "n_inner", "decoder_ffn_dim", "encoder_ffn_dim", "dff",
        "dim_ff", "ffn_hidden_size", "intermediate_size_mlp", "dense_intermediate_size",
        "mlp_hidden_size", "d_ff", "shared_intermediate_size", "feed_forward_size", "block_ff_dim",
    )),
    (32, (
        "moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size",
        "moe_shared_expert_intermediate_size", "hidden_size_per_layer_input", "expert_hidden_size",
        "original_max_position_embeddings",
    )),
    (HEADS, (
        *QUERY_HEADS, "index_n_heads", "num_experts", "n_routed_experts", "num_local_experts",
        "moe_num_experts", "num_routed_experts", "ffn_num_experts",
    )),
    (2, (
        "num_experts_per_tok", "moe_k", "num_experts_per_token", "moe_topk", "n_group",
        "num_groups", "moe_num_shared_experts", "moe_top_k", "top_k_experts", "zero_expert_num",
    )),
    (1, (
        "topk_group", "first_k_dense_replace", "n_shared_experts", "num_shared_experts",
        "num_expert_group",
    )),
    (HEAD_DIM, (
        "head_dim", "qk_rope_head_dim", "kv_channels", "dim_head", "d_kv", "v_head_dim",
        "qk_nope_head_dim", "kv_lora_rank", "o_lora_rank", "global_head_dim", "swa_head_dim",
        "swa_v_head_dim", "index_head_dim", "attention_head_dim", "lora_rank", "low_rank_dim",
        "full_attention_head_dim",
    )),
    (2 * HEAD_DIM, ("qk_head_dim",)),
    (24, ("q_lora_rank",)),
    (8, ("rotary_dim", "index_topk", "laurel_rank")),
    (WINDOW, (
        "sliding_window", "attention_chunk_size", "window_size", "local_attention", "floor_scale",
    )),
    (POSITIONS, (
        "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_target_positions",
        "max_sequence_length",
    )),
)  # fmt: skip
SIZE_OF = {name: size for size, names in SIZES for name in names}


def shrink(config: PreTrainedConfig) -> PreTrainedConfig:
    """A copy of ``config`` with its sizes reduced; the original is left alone."""
    return type(config).from_dict(_shrink_dict(config.to_dict()))


def _shrink_dict(data: Mapping[str, Any]) -> dict[str, Any]:
    kept = _kept_layers(data)
    out = {name: _shrink_value(name, value, data, kept) for name, value in data.items()}
    if "head_dim" in out and out["head_dim"] is None:
        out["head_dim"] = HEAD_DIM  # what HIDDEN // HEADS gives anyhow
    if "num_kv_shared_layers" in out and kept is not None:
        out["num_kv_shared_layers"] = sum(i >= _first_shared(data) for i in kept)
    if isinstance(data.get("num_key_value_layers"), int) and kept is not None:
        out["num_key_value_layers"] = sum(i < _first_shared(data) for i in kept)
    heads = next((out[name] for name in QUERY_HEADS if isinstance(out.get(name), int)), HEADS)
    many = next((data[name] for name in QUERY_HEADS if isinstance(data.get(name), int)), None)
    for name in KV_HEADS:
        if isinstance(data.get(name), int):
            # One stays one, all stays all, and anything between becomes a real group.
            out[name] = 1 if data[name] == 1 else heads if data[name] == many else 2
    return out


def _num_layers(data: Mapping[str, Any]) -> int | None:
    return next((data[name] for name in LAYERS if isinstance(data.get(name), int)), None)


def _first_shared(data: Mapping[str, Any]) -> int:
    """The first layer without keys of its own state; the number of layers if all have them."""
    count = _num_layers(data) or 0
    own = data.get("num_key_value_layers") or count  # counted from below, or the rest from above
    return min(own, count - (data.get("num_kv_shared_layers") or 0))


def _shares(data: Mapping[str, Any], i: int) -> int:
    """0 for a layer with keys of its own state, else its place among those that share, from 1."""
    first = _first_shared(data)
    return 0 if i < first else 1 + (i - first) % (data.get("key_value_group_size") or 1)


def _kept_layers(data: Mapping[str, Any]) -> list[int] | None:
    """Indices of layers that show every kind there is, told apart by what lists say of them."""
    count = _num_layers(data)
    if count is None:
        return None
    lists = [v for v in data.values() if isinstance(v, list) and v]
    chosen = [set(v) for v in lists if _is_layer_choice(v, count)]
    each = [v for v in lists if len(v) == count and not _is_layer_choice(v, count)]
    seen: dict[str, int] = {}
    for i in range(count):
        kind = [_shares(data, i), *(i in v for v in chosen), *(v[i] for v in each)]
        seen.setdefault(repr(kind), i)
    kept = sorted(seen.values())
    rest = [i for i in range(count) if i not in kept]
    return sorted(kept + rest[: max(0, min(2, count) - len(kept))])


def _is_layer_choice(value: list[Any], count: int) -> bool:
    """Whether a list names layers by index, rather than having an entry for each."""
    if len(value) < 3 or not all(type(entry) is int for entry in value):
        return False
    return value == sorted(set(value)) and value[0] >= 0 and value[-1] < count


def _shrink_value(name: str, value: Any, data: Mapping[str, Any], kept: list[int] | None) -> Any:
    if isinstance(value, dict):
        by_index = value and all(str(k).isdigit() and isinstance(v, dict) for k, v in value.items())
        if by_index and kept is not None:
            by_layer = {int(key): _shrink_dict(entry) for key, entry in value.items()}
            return {new: by_layer[old] for new, old in enumerate(kept) if old in by_layer}
        return _shrink_rope(value) if "rope" in name else _shrink_dict(value)
    if isinstance(value, list):
        return _shrink_list(name, value, _num_layers(data), kept)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return copy.deepcopy(value)
    if name in TOKEN_IDS:
        return min(value, 2) if value >= VOCAB else value
    if name in LAYERS:
        return len(kept) if kept is not None else min(value, 2)
    return min(value, SIZE_OF.get(name, value))


def _shrink_list(name: str, value: list[Any], count: int | None, kept: list[int] | None) -> Any:
    if kept is None or count is None or not value:
        return copy.deepcopy(value)
    if _is_layer_choice(value, count):
        return [new for new, old in enumerate(kept) if old in value]
    each = [value[i] for i in kept] if len(value) == count else value
    return [min(v, SIZE_OF.get(name, v)) if type(v) is int else copy.deepcopy(v) for v in each]


def _shrink_rope(rope: dict[str, Any]) -> dict[str, Any]:
    """Factor lists hold one entry per pair of rotated features; sections must add up to them."""
    out: dict[str, Any] = {}
    for name, value in rope.items():
        if isinstance(value, dict):
            out[name] = _shrink_rope(value)
        elif name in ("short_factor", "long_factor"):
            share = rope.get("partial_rotary_factor") or 1.0
            out[name] = value[: int(HEAD_DIM * share) // 2]
        elif name == "mrope_section":
            out[name] = [2, 3, 3] if len(value) == 3 else value
        elif name == "original_max_position_embeddings" and isinstance(value, int):
            out[name] = min(value, SIZE_OF[name])
        else:
            out[name] = copy.deepcopy(value)
    return out
