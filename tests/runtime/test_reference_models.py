"""Real architectures with tiny random weights: transformers' eager forward = graph = program.

Each has something that the others lack: windows, chunks, sinks, ALiBi, experts, latent keys,
learned positions, tables that switch with the length. Sequences run in ragged chunks and then token
by token, with blocks in no order; torch sees each one whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from qeff.backends.reference.session import ReferenceSession
from qeff.compile.plan import plan
from qeff.core.options import ExportOptions
from qeff.export.exporter import draw
from qeff.ops.interpreter import Interpreter
from qeff.runtime.session import Batch, Capabilities, Span
from qeff.sources import open_source
from qeff.transform import prepare

SMALL: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
OLD: dict[str, Any] = {
    "vocab_size": 128,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
}

CASES: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    # name: (model type, sizes, what the program must hold)
    "plain": ("llama", SMALL, {"rope", "gated", "norm"}),
    "window and softcap": (
        "gemma2",
        {**SMALL, "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16},
        {"window", "softcap"},
    ),
    "learned positions": ("gpt2", {**OLD, "bos_token_id": 1, "eos_token_id": 2}, {"embed"}),
    "alibi": (
        "bloom", {"vocab_size": 128, "hidden_size": 64, "n_layer": 2, "n_head": 4}, {"slopes"}
    ),
    "experts": ("mixtral", {**SMALL, **EXPERTS}, {"moe", "topk"}),
    "sinks": (
        "gpt_oss",
        {**SMALL, **EXPERTS, "head_dim": 16, "sliding_window": 4},
        {"moe", "sinks", "window"},
    ),
    "long tables": (
        "phi3",
        {**SMALL, "original_max_position_embeddings": 16, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8,
            "long_factor": [4.0] * 8, "original_max_position_embeddings": 16}},
        {"reduce_span"},
    ),
    "chunks and dense experts": (
        "llama4_text",
        {**SMALL, **EXPERTS, "num_experts_per_tok": 1, "head_dim": 16, "intermediate_size_mlp": 96,
         "attention_chunk_size": 4, "num_hidden_layers": 4, "floor_scale": 4},
        {"chunk"},
    ),
    "latent keys": (
        "deepseek_v3",
        {**SMALL, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
         "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
         "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
         "v_head_dim": 16},
        {"moe", "scatter"},
    ),
}  # fmt: skip


def build(name: str, folder: Path) -> Any:
    """A saved model whose weights are large enough to tell right from wrong."""
    model_type, sizes, _ = CASES[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **sizes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
    model.save_pretrained(folder)
    return model


def features(program: Any) -> set[str]:
    """Op kinds, and the attributes and inputs that attentions use."""
    found = {op.kind for op in program.ops}
    for op in program.ops:
        if op.kind == "attention":
            found |= {name for name in ("window", "chunk", "softcap") if op.attrs[name]}
            found |= {
                name for name, i in zip(("sinks", "slopes"), op.inputs[3:], strict=True) if i >= 0
            }
    return found


# Slots are gathered alike in every architecture, so two of them suffice with batch_index.
PAIRS = [*((name, False) for name in CASES), ("plain", True), ("latent keys", True)]


@pytest.mark.parametrize(("name", "continuous"), PAIRS)
def test_reference_equals_eager(name: str, continuous: bool, tmp_path: Path) -> None:
    model = build(name, tmp_path)
    options = ExportOptions(continuous_batching=continuous)
    graph = draw(prepare(open_source(str(tmp_path)), options))
    program, tensors = plan(graph)
    assert features(program) >= CASES[name][2]
    arrays = {key: np.asarray(tensor.numpy()) for key, tensor in tensors.items()}
    session = ReferenceSession(Interpreter(program, arrays), Capabilities(128, 64, 16, 3, 64))
    session.reserve(9)

    rng = np.random.default_rng(2)
    # Tables that switch by length do so for a whole forward: there every sequence stays short.
    lengths, tables = ((15, 12, 8), ((7,), (2,), (4,))) if name == "long tables" else (
        (29, 23, 8), ((7, 3), (2, 8), (4,)))  # fmt: skip
    texts = [rng.integers(3, 120, length).tolist() for length in lengths]
    with torch.no_grad():
        whole = [model(input_ids=torch.tensor([text])).logits[0].numpy() for text in texts]
    done = [0, 0, 0]
    worst = 0.0
    while done != list(lengths):
        left = [length - start for length, start in zip(lengths, done, strict=True)]
        # Ragged pieces while there is much left, single tokens at the end.
        take = [int(rng.integers(0, 12)) if n > 5 else min(n, 1) for n in left]
        take = [min(want, n - 4) if n > 5 else want for want, n in zip(take, left, strict=True)]
        tokens, positions, spans, expected = [], [], [], []
        for i in rng.permutation(3):
            start, stop = done[i], done[i] + take[i]
            if take[i]:
                spans.append(Span(len(tokens), len(tokens) + take[i], tables[i]))
                tokens += texts[i][start:stop]
                positions += range(start, stop)
                expected.append(whole[i][start:stop])
                done[i] = stop
        if not tokens:
            continue
        rows = rng.permutation(len(tokens))
        batch = Batch(np.array(tokens), np.array(positions), tuple(spans), rows)
        logits, right = session.step(batch).logits, np.concatenate(expected)[rows]
        worst = max(worst, float(np.abs(logits - right).max()))
        assert (logits.argmax(-1) == right.argmax(-1)).all()
    assert worst <= 1e-4, f"{name}: {worst}"
