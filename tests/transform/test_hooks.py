"""Hooks leave nothing behind, and the hooked module itself gives the original's numbers."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
import transformers.models.mixtral.modeling_mixtral as mixtral
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from qeff.transform.artifact import Prepared
from qeff.transform.attention import NAME, attention_hooks
from qeff.transform.cache import seen_layers, watching_cache
from qeff.transform.hooks import hooks
from qeff.transform.reference import random_model
from qeff.transform.trace import CallForm, Decoder, Trace

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 3,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
REGISTRIES = (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS, ALL_EXPERTS_FUNCTIONS)


def test_hooked_module_equals_the_original_and_leaves_no_trace() -> None:
    assert Prepared is not None  # importing it registers the ops
    config = AutoConfig.for_model("mixtral", **SMALL)
    eager = random_model(config)
    before = [dict(registry) for registry in REGISTRIES]
    functions = F.scaled_dot_product_attention, mixtral.apply_rotary_pos_emb
    trace = Trace()
    with attention_hooks(trace):
        hooked = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=NAME)
    hooked.load_state_dict(eager.state_dict())
    tokens = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 0, 0]])
    positions = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]])
    with torch.no_grad(), hooks(hooked.eval(), trace):
        cache = watching_cache()
        hooked(input_ids=tokens, past_key_values=cache, use_cache=True)
        decoder = Decoder(hooked, trace, seen_layers(cache), CallForm(True, False))
        caches = [torch.zeros(2, 2, 8, 8) for _ in range(4)]
        logits, written = decoder(tokens, positions, caches)
        assert not torch.equal(written[0], caches[0])
    with torch.no_grad():
        first = eager(input_ids=tokens[:1]).logits[0]
        second = eager(input_ids=tokens[1:, :3]).logits[0]
    torch.testing.assert_close(logits[0], first, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[1, :3], second, atol=1e-4, rtol=1e-4)
    assert trace.notes["norm rms"] == 5
    assert [dict(registry) for registry in REGISTRIES] == before
    assert functions == (F.scaled_dot_product_attention, mixtral.apply_rotary_pos_emb)
    assert all("forward" not in vars(module) for module in hooked.modules())
    assert hooked.config._experts_implementation != NAME
