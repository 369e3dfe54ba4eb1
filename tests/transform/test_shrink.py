"""Shrunken configs keep every kind of layer and build a small model of the same class."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from qeff.transform.shrink import shrink

TYPES = [
    "llama", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt2", "bloom", "mixtral",
    "deepseek_v3",
    "gpt_oss", "llama4_text", "phi3", "qwen3_moe", "opt", "falcon", "mpt", "minicpm3",
    "longcat_flash",
]  # fmt: skip


def num_params(config) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("model_type", TYPES)
def test_sizes_fall_and_kinds_stay(model_type: str) -> None:
    config = AutoConfig.for_model(model_type)
    before = config.to_dict()
    small = shrink(config)
    assert config.to_dict() == before
    assert type(small) is type(config)
    assert num_params(small) < 2_000_000
    kinds = getattr(config, "layer_types", None) or []
    assert set(getattr(small, "layer_types", None) or []) == set(kinds)


def test_small_config_is_left_as_it_is() -> None:
    config = AutoConfig.for_model("llama", hidden_size=8, num_attention_heads=2, vocab_size=50)
    small = shrink(config)
    assert (small.hidden_size, small.num_attention_heads, small.vocab_size) == (8, 2, 50)
