"""SwiftKV: a Llama whose upper layers take keys and values from one lower layer's state.

transformers does not have it, so the whole model is here, as small as it goes: what is Llama is
transformers' own. Layers from ``num_key_value_layers`` on have queries of their own state; their
keys and values are projections of the state before the first of them, under ``norm_swiftkv``.
``key_value_group_size`` neighbours share one cache. In a prompt these layers are thus not needed
but for the tokens whose logits are wanted, which a graph says by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, LlamaConfig
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaMLP,
    LlamaModel,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from qeff.core.errors import SourceError
from qeff.transform.trace import Trace

Pair = tuple[Tensor, Tensor]


def hooks(model: nn.Module, trace: Trace) -> AbstractContextManager[None]:
    """Nothing: the model is written for the general hooks."""
    return nullcontext()


def register() -> None:
    """Make the model known to transformers' automatic classes."""
    AutoConfig.register(LlamaSwiftKVConfig.model_type, LlamaSwiftKVConfig, exist_ok=True)
    AutoModelForCausalLM.register(LlamaSwiftKVConfig, LlamaSwiftKVForCausalLM, exist_ok=True)


class LlamaSwiftKVConfig(LlamaConfig):
    """Llama's config and how many layers make keys and values of their own state."""

    model_type = "llama_swiftkv"
    num_key_value_layers: int | None = None  # None: all of them
    key_value_group_size: int | None = None  # None: one
    swiftkv: bool = True  # training turns it off to run the original beside

    def first_shared(self) -> int:
        """The first layer without keys and values of its own state. Raises SourceError."""
        count = self.num_key_value_layers or self.num_hidden_layers
        group = self.key_value_group_size or 1
        if count > self.num_hidden_layers or (self.num_hidden_layers - count) % group:
            raise SourceError(
                f"config has {self.num_hidden_layers} layers, of which {count} make keys and"
                f" values and the rest share them in groups of {group}",
                "num_key_value_layers and key_value_group_size do not fit together",
            )
        return count


class SwiftKVAttention(nn.Module):
    """Queries of a layer's own state over keys and values that are given."""

    def __init__(self, config: LlamaSwiftKVConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
        num_heads: int = config.num_attention_heads
        num_kv_heads: int = config.num_key_value_heads or num_heads
        self.num_key_value_groups = num_heads // num_kv_heads
        self.scaling = self.head_dim**-0.5
        width, bias = config.hidden_size, config.attention_bias
        inner, narrow = num_heads * self.head_dim, num_kv_heads * self.head_dim
        self.q_proj_swiftkv = nn.Linear(width, inner, bias=bias)
        place = layer_idx - config.first_shared()
        self.makes_keys = place % (config.key_value_group_size or 1) == 0
        if self.makes_keys:
            self.k_proj_swiftkv = nn.Linear(width, narrow, bias=bias)
            self.v_proj_swiftkv = nn.Linear(width, narrow, bias=bias)
        self.o_proj = nn.Linear(inner, width, bias=bias)

    def by_head(self, x: Tensor) -> Tensor:
        """[B, S, heads * dim] as [B, heads, S, dim]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def keys_and_values(self, shared: Tensor, angles: Pair, cache: Any) -> Pair:
        """Those of the whole sequence, after this step's were written to the cache."""
        key = self.by_head(self.k_proj_swiftkv(shared))
        value = self.by_head(self.v_proj_swiftkv(shared))
        key = apply_rotary_pos_emb(key, key, *angles)[1]
        return (key, value) if cache is None else cache.update(key, value, self.layer_idx)

    def forward(self, x: Tensor, known: Pair, angles: Pair, mask: Tensor | None) -> Tensor:
        query = self.by_head(self.q_proj_swiftkv(x))
        query = apply_rotary_pos_emb(query, query, *angles)[0]
        attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        out, _ = attend(self, query, *known, mask, scaling=self.scaling)
        return self.o_proj(out.flatten(-2))  # [B, S, heads, dim]


class SwiftKVDecoderLayer(nn.Module):
    """A Llama layer around that attention."""

    def __init__(self, config: LlamaSwiftKVConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = SwiftKVAttention(config, layer_idx)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, known: Pair, angles: Pair, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), known, angles, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaSwiftKVModel(LlamaModel):
    """The layers of both kinds, one after the other."""

    config_class = LlamaSwiftKVConfig

    def __init__(self, config: LlamaSwiftKVConfig) -> None:
        LlamaPreTrainedModel.__init__(self, config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        first, last = config.first_shared(), config.num_hidden_layers
        plain = [LlamaDecoderLayer(config, i) for i in range(first)]
        shared = [SwiftKVDecoderLayer(config, i) for i in range(first, last)]
        self.layers = nn.ModuleList([*plain, *shared])
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.norm_swiftkv = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = past_key_values
        if use_cache and cache is None:
            cache = DynamicCache()
        if position_ids is None:
            seen = cache.get_seq_length() if cache is not None else 0
            position_ids = (torch.arange(x.shape[1], device=x.device) + seen)[None]
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=cache,
            position_ids=position_ids,
        )
        angles = self.rotary_emb(x, position_ids=position_ids)
        first = self.config.first_shared()
        for layer in self.layers[:first]:
            x = layer(
                x, attention_mask=mask, position_ids=position_ids, past_key_values=cache,
                use_cache=use_cache, position_embeddings=angles,
            )  # fmt: skip
        shared, known = self.norm_swiftkv(x), None
        for layer in self.layers[first:]:
            attention: Any = layer.self_attn
            if attention.makes_keys:
                known = attention.keys_and_values(shared, angles, cache)
            x = layer(x, known, angles, mask)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x), past_key_values=cache)


class LlamaSwiftKVForCausalLM(LlamaForCausalLM):
    """The model under Llama's own head."""

    config_class = LlamaSwiftKVConfig

    def __init__(self, config: LlamaSwiftKVConfig) -> None:
        LlamaPreTrainedModel.__init__(self, config)
        self.model = LlamaSwiftKVModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()
