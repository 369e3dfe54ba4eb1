"""Models that cannot be exported are refused before tracing, with the layer's name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from qeff.core.errors import SourceError, UnsupportedModel
from qeff.core.options import ExportOptions
from qeff.sources import open_source
from qeff.transform import prepare

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


class Headers:
    """A source that has a config and no tensors."""

    name, kind, folder, gguf_file = "headers", "safetensors", None, None
    generation_config: dict[str, Any] = {}  # noqa: RUF012
    tensors: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def header_hash(self) -> str:
        return "0"


def source(model_type: str, **settings: Any) -> Headers:
    return Headers(AutoConfig.for_model(model_type, **settings).to_dict())


@pytest.mark.parametrize(
    ("model_type", "settings", "message"),
    [
        ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, "MambaBlock"),
        ("qwen3_next", {**SMALL, "num_experts": 4}, "layer 0 .*linear_attention"),
        ("lfm2", {**SMALL, "full_attn_idxs": [1, 3]}, "layer 0 .*conv"),
        ("recurrent_gemma", SMALL, "layer 0 .*recurrent"),
        ("falcon_h1", SMALL, "layer 0 .*hybrid"),
    ],
)
def test_layers_with_another_state(model_type: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        prepare(source(model_type, **settings), ExportOptions())  # type: ignore[arg-type]


def test_texts_that_are_read_both_ways() -> None:
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    with pytest.raises(UnsupportedModel, match="also later ones"):
        prepare(source("cpmant", **sizes, dim_head=8), ExportOptions())  # type: ignore[arg-type]


def test_a_config_file_may_hold_infinity(tmp_path: Path) -> None:
    """JSON cannot say it: transformers writes an object, and its configs take only numbers."""
    AutoConfig.for_model("falcon_h1", **SMALL).save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    assert "Infinity" in text
    with pytest.raises(UnsupportedModel, match=r"layer 0 .*hybrid"):
        prepare(Headers(json.loads(text)), ExportOptions())  # type: ignore[arg-type]


def test_unknown_model_type_names_the_nearest() -> None:
    with pytest.raises(SourceError) as caught:
        prepare(Headers({"model_type": "lama"}), ExportOptions())  # type: ignore[arg-type]
    assert "llama" in str(caught.value.hint)


def test_code_of_the_checkpoint_needs_consent() -> None:
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "x.Y"}}
    with pytest.raises(SourceError) as caught:
        prepare(Headers(config), ExportOptions())  # type: ignore[arg-type]
    assert "--trust-remote-code" in str(caught.value.hint)


def test_an_encoder_is_no_decoder(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="not a causal language model"):
        prepare(source("vit"), ExportOptions())  # type: ignore[arg-type]


def test_a_model_that_looks_ahead_is_told_how_to_decode() -> None:
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    with pytest.raises(UnsupportedModel, match="both directions") as caught:
        prepare(source("roberta", **sizes), ExportOptions())  # type: ignore[arg-type]
    assert "is_decoder" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_attention_heads": "4"}, "expected int, got str"),
        ({"num_attention_heads": 3}, "not a multiple"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor"),
        ({"hidden_act": "no-such-function"}, "no-such-function"),
        ({"vocab_size": -5}, "cannot be built"),
    ],
)
def test_a_config_that_transformers_refuses(settings: dict[str, Any], message: str) -> None:
    config = {"model_type": "llama", **SMALL, **settings}
    with pytest.raises((SourceError, UnsupportedModel), match=message) as caught:
        prepare(Headers(config), ExportOptions())  # type: ignore[arg-type]
    assert "config.json" in str(caught.value.hint)


def test_frequencies_that_follow_the_length() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    config = {"model_type": "llama", **SMALL, "rope_parameters": rope}
    with pytest.raises(UnsupportedModel, match="'dynamic'"):
        prepare(Headers(config), ExportOptions())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "scales", "settings"),
    [
        # Names and shapes fit, so that without a look at the scales nothing would be amiss.
        (torch.float8_e4m3fn, "weight_scale_inv", {"quant_method": "fp8"}),
        (torch.float8_e4m3fn, "weight_scale", None),  # said in a file of its own
        (torch.int8, "SCB", {"quant_method": "bitsandbytes"}),
    ],
)
def test_weights_with_scales_beside_them(
    dtype: torch.dtype, scales: str, settings: dict[str, Any] | None, tmp_path: Path
) -> None:
    config = AutoConfig.for_model("llama", **SMALL)
    weights = AutoModelForCausalLM.from_config(config).state_dict()
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        weights[name] = weights[name].to(dtype)
        weights[f"{name.removesuffix('weight')}{scales}"] = torch.ones(1)
    save_file(weights, tmp_path / "model.safetensors")
    written = config.to_dict() | ({"quantization_config": settings} if settings else {})
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(UnsupportedModel, match=r"is quantised.*proj\.weight has its scales"):
        prepare(open_source(tmp_path), ExportOptions())
