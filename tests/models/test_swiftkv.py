"""SwiftKV: right against eager PyTorch, and the upper layers run on the wanted rows alone.

The rungs of the ladder are those of every architecture; here also prompts in chunks of which only
the last token is wanted, counts of what each op was run on, and the time of a long prompt.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ladder import climb, open_native, open_reference

from qeff.compile.plan import plan
from qeff.core.errors import SourceError
from qeff.core.options import ExportOptions
from qeff.export.artifact import Graph
from qeff.export.exporter import draw
from qeff.ops.registry import kinds
from qeff.runtime.session import Batch, Session, Span
from qeff.sources import open_source
from qeff.transform import prepare
from qeff.transform.families import register_family
from qeff.transform.families.llama_swiftkv import LlamaSwiftKVConfig
from qeff.transform.reference import EagerReference, make_twin
from qeff.transform.shrink import shrink

LAYERS, FIRST = 6, 2


def config(group: int = 1, **sizes: int) -> LlamaSwiftKVConfig:
    register_family("llama_swiftkv")
    small = {
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024,
        "num_hidden_layers": LAYERS, "num_key_value_layers": FIRST, "key_value_group_size": group,
    }  # fmt: skip
    return LlamaSwiftKVConfig(**{**small, **sizes})


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> tuple[EagerReference, Graph]:
    made = make_twin(config(), tmp_path_factory.mktemp("twin"), ExportOptions())
    assert made.prepared is not None
    return made, draw(made.prepared)


@pytest.mark.parametrize(("group", "continuous"), [(1, True), (2, False), (4, True)])
def test_every_rung_equals_eager(group: int, continuous: bool, tmp_path: Path) -> None:
    ladder = climb(config(group), tmp_path, continuous=continuous)
    assert len(ladder.graph.spec.caches) == FIRST + (LAYERS - FIRST) // group
    for found in (ladder.onnx, ladder.program, ladder.native):
        assert found is not None
        assert found.max_abs_error <= 1e-4 and found.equal_tokens == found.tokens


def by_hand(model, tokens: np.ndarray) -> np.ndarray:
    """The last token's logits as the paper has it: upper layers see that token alone."""
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate

    with torch.no_grad():
        body, ids = model.model, torch.from_numpy(tokens)[None]
        x = body.embed_tokens(ids)
        cos, sin = body.rotary_emb(x, position_ids=torch.arange(len(tokens))[None])
        mask = torch.full((len(tokens),) * 2, -torch.inf).triu(1)[None, None]
        for layer in body.layers[:FIRST]:
            x = layer(x, attention_mask=mask, position_embeddings=(cos, sin))
        shared, x = body.norm_swiftkv(x), x[:, -1:]
        for layer in body.layers[FIRST:]:
            own, split = layer.self_attn, (-1, 16)
            key = own.k_proj_swiftkv(shared).unflatten(-1, split).transpose(1, 2)
            value = own.v_proj_swiftkv(shared).unflatten(-1, split).transpose(1, 2)
            query = own.q_proj_swiftkv(layer.input_layernorm(x)).unflatten(-1, split)
            query = rotate(query.transpose(1, 2), query.transpose(1, 2), cos[:, -1:], sin[:, -1:])
            key = rotate(key, key, cos, sin)[0].repeat_interleave(2, 1)
            share = torch.softmax(query[0] @ key.mT / 4, -1)
            out = (share @ value.repeat_interleave(2, 1)).transpose(1, 2).flatten(2)
            x = x + own.o_proj(out)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return model.lm_head(body.norm(x))[0, 0].numpy()


@pytest.mark.parametrize("target", ["reference", "native"])
def test_chunks_of_which_only_the_end_is_wanted(target: str, twin, tmp_path: Path) -> None:
    reference, graph = twin
    tokens = np.random.default_rng(3).integers(3, 128, 15)
    session: Session = (
        open_reference(graph) if target == "reference" else open_native(graph, tmp_path)
    )
    session.reserve(4)
    table = tuple(range(4)) if target == "reference" else (2,)
    expected = reference.logits(tokens.tolist(), [len(tokens)])
    np.testing.assert_allclose(expected[-1], by_hand(reference.model, tokens), atol=1e-4)
    for cuts in ([15], [4, 4, 7], [1, 13, 1]):
        start = 0
        for count in cuts:
            stop = start + count
            rows = [count - 1] if stop == len(tokens) else []
            used = table[: -(-stop // session.caps.block_len)]
            batch = Batch(tokens[start:stop], np.arange(start, stop), (Span(0, count, used),),
                          np.array(rows, np.int64))  # fmt: skip
            logits = session.step(batch).logits
            start = stop
        np.testing.assert_allclose(logits[0], expected[-1], atol=1e-4)
    session.close()


def test_upper_layers_run_on_the_wanted_rows_alone(twin, monkeypatch: pytest.MonkeyPatch) -> None:
    _, graph = twin
    names = [op.name for op in plan(graph)[0].ops if op.kind == "linear"]
    linear, counts = kinds()["linear"], []

    def counted(inputs, attrs, step):
        counts.append(len(inputs[0]))
        return linear.reference(inputs, attrs, step)

    table = {**kinds(), "linear": replace(linear, reference=counted)}
    monkeypatch.setattr("qeff.ops.interpreter.kinds", lambda: table)
    session = open_reference(graph)
    session.reserve(4)
    session.step(Batch(np.arange(12), np.arange(12), (Span(0, 12, (0, 1, 2)),), np.array([11])))
    assert len(counts) == len(names) == 7 * LAYERS + 1
    for name, count in zip(names, counts, strict=True):
        path = name.split(".")  # model.layers.2.self_attn.k_proj_swiftkv/…
        is_low = path[1:2] == ["layers"] and int(path[2]) < FIRST
        writes_cache = any(part in name for part in ("k_proj_swiftkv", "v_proj_swiftkv"))
        assert count == (12 if is_low or writes_cache else 1), name


def test_a_long_prompt_takes_the_time_of_the_lower_layers(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 768}
    made = make_twin(config(**sizes), tmp_path / "twin", ExportOptions())
    assert made.prepared is not None
    session = open_native(draw(made.prepared), tmp_path / "native")
    session.reserve(8)
    tokens = np.arange(256) % 128
    times = []
    for rows in (np.arange(256), np.array([255])):
        batch = Batch(tokens, np.arange(256), (Span(0, 256, tuple(range(8))),), rows)
        took = []
        for _ in range(4):
            start = time.perf_counter()
            session.step(batch)
            took.append(time.perf_counter() - start)
        times.append(min(took))
    session.close()
    # Two layers of six, and keys and values of the others: about a third of all work.
    assert times[1] < 0.6 * times[0]


def test_a_twin_keeps_a_whole_group_of_both_kinds() -> None:
    large = config(4, num_hidden_layers=32, num_key_value_layers=16)
    small = shrink(large)
    assert (small.num_hidden_layers, small.num_key_value_layers) == (5, 1)
    assert small.first_shared() == 1 and small.key_value_group_size == 4


@pytest.mark.parametrize("wrong", [{"num_key_value_layers": 7}, {"key_value_group_size": 3}])
def test_a_config_that_does_not_add_up_is_refused(wrong: dict, tmp_path: Path) -> None:
    make_twin(config(), tmp_path, ExportOptions())
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **wrong}))
    with pytest.raises(SourceError, match="share them in groups"):
        prepare(open_source(tmp_path), ExportOptions())
