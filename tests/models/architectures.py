"""Tiny configs, one row for each architecture: two layers or as many as its kinds of layer need."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PreTrainedConfig

USUAL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT = {
    "vocab_size": 128,
    "n_positions": 64,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_OLD = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 8,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0] * 6,
    "long_factor": [4.0] * 6,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 16,
}
_BERT = {**_OLD, "intermediate_size": 96, "is_decoder": True, "max_position_embeddings": 64}
_PAIR = {
    "vocab_size": 128,
    "d_model": 64,
    "decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 64,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}


def _usual(model_type: str, **settings: Any) -> tuple[str, dict[str, Any]]:
    return model_type, {**USUAL, **settings}


ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": _usual("llama"),
    "llama-tied": _usual("llama", tie_word_embeddings=True),
    "qwen2": _usual("qwen2"),
    "qwen3": _usual("qwen3", head_dim=16),
    "gemma2": _usual("gemma2", head_dim=16, sliding_window=4, query_pre_attn_scalar=16),
    "gemma3_text": _usual("gemma3_text", head_dim=16, sliding_window=4, num_hidden_layers=6),
    "phi3": _usual("phi3"),
    "phi3-longrope": _usual("phi3", rope_parameters=_LONGROPE, partial_rotary_factor=0.75),
    "gpt2": ("gpt2", _GPT),
    "gptj": ("gptj", {**_GPT, "rotary_dim": 8}),
    "codegen": ("codegen", {**_GPT, "rotary_dim": 8, "n_ctx": 64}),
    "gpt_bigcode": ("gpt_bigcode", _GPT),
    "falcon": ("falcon", {**_OLD, "multi_query": True, "alibi": False}),
    "falcon-alibi": ("falcon", {**_OLD, "multi_query": False, "num_kv_heads": 4, "alibi": True}),
    "mpt": (
        "mpt",
        {"vocab_size": 128, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    ),
    "bloom": ("bloom", {"vocab_size": 128, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "opt": (
        "opt",
        {**_OLD, "ffn_dim": 96, "word_embed_proj_dim": 64, "max_position_embeddings": 64},
    ),
    "starcoder2": _usual("starcoder2", sliding_window=4),
    "mistral-window": _usual("mistral", sliding_window=4),
    "mixtral": _usual("mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": _usual("qwen3_moe", num_experts=4, head_dim=16, **_EXPERTS),
    "olmoe": _usual("olmoe", num_experts=4, num_experts_per_tok=2),
    "gpt_oss": _usual(
        "gpt_oss",
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=16,
        sliding_window=4,
        rope_parameters=_YARN,
    ),
    "granite": _usual(
        "granite", attention_multiplier=0.2, residual_multiplier=0.5, logits_scaling=2.0
    ),
    # The default multiplier of 1 makes scores so large that eager float32 itself is off by 1e-4.
    "granitemoe": _usual(
        "granitemoe", num_local_experts=4, num_experts_per_tok=2, attention_multiplier=0.1
    ),
    "olmo2": _usual("olmo2"),
    "smollm3": _usual("smollm3", num_hidden_layers=4),
    "glm4": _usual("glm4", head_dim=16),
    "glm4_moe": _usual(
        "glm4_moe", head_dim=16, n_routed_experts=4, n_group=1, topk_group=1, **_EXPERTS
    ),
    "cohere2": _usual("cohere2", sliding_window=4, num_hidden_layers=4, head_dim=16),
    "deepseek_v3": _usual(
        "deepseek_v3",
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        **{**_EXPERTS, **_LATENT},
    ),
    "llama4_text": _usual(
        "llama4_text",
        head_dim=16,
        intermediate_size_mlp=96,
        num_local_experts=4,
        num_experts_per_tok=1,
        attention_chunk_size=4,
        num_hidden_layers=4,
        floor_scale=4,
    ),
    "stablelm": _usual("stablelm"),
    "exaone4": _usual("exaone4", sliding_window=4, num_hidden_layers=4, sliding_window_pattern=4),
    "ernie4_5": _usual("ernie4_5", head_dim=16),
    "nemotron": _usual("nemotron", head_dim=16),
    "gpt_neox": _usual("gpt_neox"),
    "phi": _usual("phi"),
    "bart": ("bart", _PAIR),
    "marian": ("marian", {**_PAIR, "decoder_vocab_size": 120, "pad_token_id": 2}),
    "trocr-sinus": ("trocr", {**_PAIR, "use_learned_position_embeddings": False}),
    "xglm": ("xglm", {"vocab_size": 128, "d_model": 64, "ffn_dim": 96, "num_layers": 2}),
    "bert": ("bert", _BERT),
    "roberta": ("roberta", _BERT),
    "big_bird": ("big_bird", _BERT),
    "roformer": ("roformer", {**_BERT, "rotary_value": True}),
    "xmod": ("xmod", {**_BERT, "languages": ["aa", "bb"], "default_language": "bb"}),
    "git": ("git", {**_BERT, "vision_config": {"hidden_size": 48, "num_hidden_layers": 1}}),
    "gemma3n_text": _usual(
        "gemma3n_text",
        head_dim=16,
        sliding_window=4,
        num_hidden_layers=4,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        intermediate_size=[96] * 4,
        activation_sparsity_pattern=[0.5, 0.0, 0.5, 0.0],
        vocab_size_per_layer_input=128,
        hidden_size_per_layer_input=8,
        laurel_rank=8,
    ),
    "gemma4_text": _usual(
        "gemma4_text",
        head_dim=16,
        sliding_window=4,
        num_hidden_layers=2,
        layer_types=["sliding_attention", "full_attention"],
        vocab_size_per_layer_input=128,
        hidden_size_per_layer_input=8,
    ),
    "afmoe": _usual("afmoe", num_experts=4, head_dim=16, sliding_window=4, **_EXPERTS),
    "apertus": _usual("apertus"),
    "cohere_compass_text": _usual(
        "cohere_compass_text",
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters=dict.fromkeys(["sliding_attention", "full_attention"], _ROPE),
    ),
    "dbrx": (
        "dbrx",
        {
            "vocab_size": 128,
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 64,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 2.0},
            "ffn_config": {
                "hidden_size": 64,
                "ffn_hidden_size": 32,
                "moe_num_experts": 4,
                "moe_top_k": 2,
            },
        },
    ),
    "emu3": ("emu3", {"text_config": USUAL}),
    "gemma3": ("gemma3", {"text_config": {**USUAL, "head_dim": 16, "sliding_window": 4}}),
    "gpt_neo": (
        "gpt_neo",
        {
            "vocab_size": 128,
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 64,
            "window_size": 4,
            "attention_types": [[["global", "local"], 1]],
        },
    ),
    "jetmoe": _usual("jetmoe", kv_channels=16, num_local_experts=4, num_experts_per_tok=2),
    "longcat_flash": _usual(
        "longcat_flash",
        **{**_LATENT, "num_layers": 2, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32},
        n_routed_experts=4,
        zero_expert_num=2,
        moe_topk=2,
        head_dim=8,
    ),
    "phimoe": _usual("phimoe", num_local_experts=4, num_experts_per_tok=2),
}


def tiny_config(row: str) -> PreTrainedConfig:
    """The config of a row."""
    model_type, settings = ROWS[row]
    return AutoConfig.for_model(model_type, **settings)
