"""Where parameters come from: every expression against the state that transformers itself loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from qeff.core.errors import SourceError
from qeff.core.options import ExportOptions
from qeff.sources import open_source
from qeff.transform import prepare
from qeff.transform.expression import Concat, Expression, Leaf, Permute, Reshape, Slice
from qeff.transform.quiet import quiet_transformers
from qeff.transform.reference import random_model

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
GPT2 = {"vocab_size": 96, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}


def config(model_type: str, **settings: object) -> PreTrainedConfig:
    return AutoConfig.for_model(model_type, **settings)


CONFIGS = {
    "llama": lambda: config("llama", **SMALL),
    "llama-tied": lambda: config("llama", **SMALL, tie_word_embeddings=True),
    "gpt2": lambda: config("gpt2", **GPT2),
    "mixtral": lambda: config("mixtral", **SMALL, num_local_experts=4),
    "qwen3_moe": lambda: config("qwen3_moe", **SMALL, **EXPERTS, num_experts=4, head_dim=8),
    "gpt_oss": lambda: config(
        "gpt_oss", **SMALL, num_local_experts=4, num_experts_per_tok=2, head_dim=8
    ),
    "granitemoe": lambda: config("granitemoe", **SMALL, num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v3": lambda: config(
        "deepseek_v3",
        **{**SMALL, **EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2},
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
}


def save(name: str, folder: Path, **how: object) -> Path:
    with quiet_transformers():
        random_model(CONFIGS[name]()).save_pretrained(folder, **how)
    return folder


def value(origin: Expression, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    match origin:
        case Leaf(name=name):
            return tensors[name]
        case Concat(parts=parts, axis=axis):
            return torch.cat([value(part, tensors) for part in parts], axis)
        case Slice(source=source, axis=axis, start=start, stop=stop):
            return value(source, tensors).narrow(axis, start, stop - start)
        case Permute(source=source, perm=perm):
            return value(source, tensors).permute(perm)
        case Reshape(source=source, shape=shape):
            return value(source, tensors).reshape(shape)


def check(folder: Path) -> None:
    prepared = prepare(open_source(folder), ExportOptions())
    assert prepared.unused == ()
    tensors: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    with quiet_transformers():
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    state = loaded.state_dict()
    for name, _ in loaded.named_parameters():
        made = value(prepared.weights[f"model.{name}"], tensors)
        torch.testing.assert_close(made.float(), state[name], rtol=0, atol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_what_transformers_loads(name: str, tmp_path: Path) -> None:
    check(save(name, tmp_path))


def test_sharded(tmp_path: Path) -> None:
    save("mixtral", tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    check(tmp_path)


def test_half_precision(tmp_path: Path) -> None:
    with quiet_transformers():
        random_model(CONFIGS["mixtral"]()).to(torch.bfloat16).save_pretrained(tmp_path)
    check(tmp_path)


def rewrite(folder: Path, change: object) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)  # type: ignore[operator]
    save_file(tensors, path, metadata={"format": "pt"})


def test_names_without_the_base_prefix(tmp_path: Path) -> None:
    """The hub's gpt2 was saved without its head, so its names lack ``transformer.``."""
    save("gpt2", tmp_path)

    def strip(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)  # a mask that old checkpoints carry

    rewrite(tmp_path, strip)
    check(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "settings", "prefix"),
    [
        ("bloom", {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "transformer."),
        ("llama", SMALL, "model."),
    ],
)
def test_base_models(model_type: str, settings: object, prefix: str, tmp_path: Path) -> None:
    """A model that was saved without its head, and ties it, has no prefix in its names."""
    with quiet_transformers():
        tied = config(model_type, **settings, tie_word_embeddings=True)  # type: ignore[arg-type]
        random_model(tied).base_model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    assert not any(name.startswith(prefix) for name in load_file(path))
    check(tmp_path)


def test_old_names_of_norms(tmp_path: Path) -> None:
    sizes = {**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}, "is_decoder": True}
    with quiet_transformers():
        random_model(config("bert", **sizes)).save_pretrained(tmp_path)

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(name)

    rewrite(tmp_path, rename)
    assert "bert.embeddings.LayerNorm.gamma" in load_file(tmp_path / "model.safetensors")
    check(tmp_path)


def test_per_expert_tensors_become_one(tmp_path: Path) -> None:
    names = load_file(save("mixtral", tmp_path) / "model.safetensors")
    assert "model.layers.0.block_sparse_moe.experts.3.w2.weight" in names
    prepared = prepare(open_source(tmp_path), ExportOptions())
    origin = prepared.weights["model.model.layers.0.mlp.experts.down_proj"]
    assert isinstance(origin, Concat) and len(origin.parts) == 4


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    save("llama", tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(SourceError, match=r"no tensor for model\.layers\.1\.mlp\.up_proj\.weight"):
        prepare(open_source(tmp_path), ExportOptions())


def test_wrong_shape_is_named(tmp_path: Path) -> None:
    save("llama", tmp_path)
    path = tmp_path / "config.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "intermediate_size": 40}))
    with pytest.raises(SourceError, match=r"down_proj\.weight has the shape \[32, 48\]"):
        prepare(open_source(tmp_path), ExportOptions())


def test_left_over_tensors_are_listed(tmp_path: Path) -> None:
    save("llama", tmp_path)

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        tensors["model.layers.0.extra.weight"] = torch.ones(4)

    rewrite(tmp_path, add)
    prepared = prepare(open_source(tmp_path), ExportOptions())
    assert prepared.unused == ("model.layers.0.extra.weight",)


def test_a_head_of_its_own_wins_over_tying(tmp_path: Path) -> None:
    """A checkpoint that holds both tensors is not tied, whatever its config says."""
    save("llama", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    prepared = prepare(open_source(tmp_path), ExportOptions())
    assert prepared.weights["model.lm_head.weight"] == Leaf("lm_head.weight", (96, 32))
    names = dict(prepared.module.named_parameters())
    assert names["model.lm_head.weight"] is not names["model.model.embed_tokens.weight"]
    check(tmp_path)
