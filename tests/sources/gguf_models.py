"""Writes tiny random models as GGUF files, the way a converter does, with the gguf package.

The layout changes of converters (permuted heads, shifted norms, transposed matrices, split experts)
are written here on their own, so that reading them back is checked against the model itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 300,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 128, "tie_word_embeddings": False,
    },
    "gemma3_text": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 300,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32,
        "max_position_embeddings": 128, "sliding_window": 16,
    },
    "gpt2": {
        "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300, "n_positions": 128,
    },
    "qwen3_moe": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 300,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
ARCHITECTURES = {
    "llama": "llama", "gemma3_text": "gemma3", "gpt2": "gpt2", "qwen3_moe": "qwen3moe"
}  # fmt: skip
NUM_TOKENS = 300


def make_model(model_type: str) -> Any:
    """A tiny model with random weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SIZES[model_type]))
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(0.3, 0.5)
    return model.eval()


def write_gguf(
    path: Path, model: Any, kind: str = "F32", more: Callable[[gguf.GGUFWriter], None] | None = None
) -> Path:
    """The model as a GGUF file whose matrices have one quantisation type; ``more`` adds to it."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    _add_sizes(writer, architecture, config)
    add_vocabulary(writer)
    if more is not None:
        more(writer)
    names = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers
    )
    for hf_name, value in model.state_dict().items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for name, stored in _as_stored(hf_name, value.float().numpy(), config, names):
            _add_tensor(writer, name, stored, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """A byte-level vocabulary with a merge and two special tokens."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    alphabet = list(bytes_to_unicode().values())
    tokens = [*alphabet, "he", "Ġhe", "<|end|>", "<|start|>"]
    types = [1] * (len(tokens) - 2) + [3, 3]
    missing = NUM_TOKENS - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*tokens, *(f"[PAD{i}]" for i in range(missing))])
    writer.add_token_types([*types, *[5] * missing])
    writer.add_token_merges(["h e", "Ġ he"])
    writer.add_bos_token_id(tokens.index("<|start|>"))
    writer.add_eos_token_id(tokens.index("<|end|>"))
    writer.add_eot_token_id(tokens.index("<|start|>"))
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages[0]['content'] }}")


def _add_sizes(writer: gguf.GGUFWriter, architecture: str, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if architecture == "gpt2":
        writer.add_feed_forward_length(4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if architecture == "llama":
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_vocab_size(config.vocab_size)
    else:
        writer.add_key_length(config.head_dim)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _as_stored(
    hf_name: str, value: np.ndarray, config: Any, names: Any
) -> list[tuple[str, np.ndarray]]:
    if hf_name.endswith("experts.gate_up_proj"):
        layer = hf_name.split(".")[2]
        gate, up = np.split(value, 2, axis=1)
        return [
            (f"blk.{layer}.ffn_gate_exps.weight", gate), (f"blk.{layer}.ffn_up_exps.weight", up)
        ]  # fmt: skip
    if hf_name.endswith("experts.down_proj"):
        return [(f"blk.{hf_name.split('.')[2]}.ffn_down_exps.weight", value)]
    name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
    assert name is not None, hf_name
    if config.model_type == "llama" and ".q_proj." in hf_name:
        value = _pair_halves(value, config.num_attention_heads)
    elif config.model_type == "llama" and ".k_proj." in hf_name:
        value = _pair_halves(value, config.num_key_value_heads)
    elif config.model_type == "gemma3_text" and hf_name.endswith("norm.weight"):
        value = value + 1
    elif config.model_type == "gpt2" and value.ndim == 2 and ".c_" in hf_name:
        value = value.T
    return [(name, value)]


def _pair_halves(value: np.ndarray, num_heads: int) -> np.ndarray:
    """Within each head, put row i of the first half before row i of the second."""
    heads = value.reshape(num_heads, 2, -1, value.shape[-1])  # [heads, halves, rows, columns]
    return heads.swapaxes(1, 2).reshape(value.shape)


def _add_tensor(writer: gguf.GGUFWriter, name: str, value: np.ndarray, kind: str) -> None:
    value = np.ascontiguousarray(value, np.float32)
    if kind == "F32" or value.ndim == 1:
        writer.add_tensor(name, value)
        return
    stored_as = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, gguf.quantize(value, stored_as), raw_dtype=stored_as)
