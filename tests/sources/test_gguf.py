"""GGUF files: values against the model they were written from, the rest against transformers."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
from gguf_models import make_model, write_gguf
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from qeff.core.formats import FORMATS
from qeff.core.tensor import RowReader
from qeff.sources import open_source
from qeff.sources.gguf_header import FORMAT_OF_TYPE

TEXTS = ["", "he", " he said hello", "<|start|>he<|end|>\n\n1234", "naïve ☃ 日本"]


@pytest.fixture(scope="module")
def models():
    made: dict[str, object] = {}
    return lambda kind: made.setdefault(kind, make_model(kind))


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """What remains of values after a stay in a format, row by row."""
    if kind == "F32" or values.ndim == 1:
        return values
    stored_as = gguf.GGMLQuantizationType[kind]
    return gguf.dequantize(gguf.quantize(np.ascontiguousarray(values), stored_as), stored_as)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_llama_values_places_and_blocks(tmp_path, models, kind):
    model = models("llama")
    source = open_source(write_gguf(tmp_path / "m.gguf", model, kind))
    expected = {name: value.float().numpy() for name, value in model.state_dict().items()}
    assert source.tensors.keys() == expected.keys()
    for name, tensor in source.tensors.items():
        form = FORMATS[tensor.format]
        values = tensor.read()
        assert tensor.name == name
        assert tensor.shape == values.shape == expected[name].shape
        np.testing.assert_array_equal(values.astype(np.float32), rounded(expected[name], kind))
        assert values.dtype == (form.dtype or np.float32)
        assert tensor.format == (kind.lower() if values.ndim > 1 else "f32")
        assert tensor.raw().shape[1] == form.num_bytes(values.shape[-1])
        is_moved = "q_proj" in name or "k_proj" in name
        assert (tensor.location is not None) == (form.is_plain and not is_moved)
        if tensor.location is not None:
            place = tensor.location
            stored = place.path.read_bytes()[place.offset : place.offset + place.length]
            assert stored == values.tobytes()


def test_moved_blocks_are_the_blocks_of_the_moved_rows(tmp_path, models):
    model = models("llama")
    source = open_source(write_gguf(tmp_path / "m.gguf", model, "Q8_0"))
    name = "model.layers.1.self_attn.q_proj.weight"
    kind = gguf.GGMLQuantizationType.Q8_0
    expected = gguf.quantize(model.state_dict()[name].numpy(), kind)
    np.testing.assert_array_equal(source.tensors[name].raw(), expected)


@pytest.mark.parametrize("model_type", ["gemma3_text", "gpt2", "qwen3_moe"])
def test_other_layouts_are_undone(tmp_path, models, model_type):
    model = models(model_type)
    source = open_source(write_gguf(tmp_path / "m.gguf", model))
    expected = {name: value.numpy() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    assert source.tensors.keys() == expected.keys()
    for name, tensor in source.tensors.items():
        np.testing.assert_allclose(tensor.read(), expected[name], atol=1e-6, err_msg=name)
        assert tensor.raw().nbytes == tensor.read().nbytes
        assert tensor.format == "f32"


def test_values_that_change_have_no_place_in_the_file(tmp_path, models):
    gemma = open_source(write_gguf(tmp_path / "m.gguf", models("gemma3_text"), "Q8_0")).tensors
    assert gemma["model.norm.weight"].location is None
    assert gemma["model.layers.0.mlp.up_proj.weight"].format == "q8_0"
    gpt2 = open_source(write_gguf(tmp_path / "n.gguf", models("gpt2"), "Q8_0")).tensors
    assert gpt2["transformer.h.0.mlp.c_fc.weight"].format == "f32"
    assert gpt2["transformer.wte.weight"].format == "q8_0"


def test_joined_experts_keep_their_blocks(tmp_path, models):
    model = models("qwen3_moe")
    source = open_source(write_gguf(tmp_path / "m.gguf", model, "Q8_0"))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensor = source.tensors[name]
    kind = gguf.GGMLQuantizationType.Q8_0
    expected = gguf.quantize(model.state_dict()[name].numpy(), kind)  # [experts, rows, bytes]
    assert tensor.format == "q8_0"
    np.testing.assert_array_equal(tensor.raw(), expected.reshape(-1, expected.shape[-1]))


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2", "qwen3_moe"])
def test_config_is_what_transformers_makes(tmp_path, models, model_type):
    path = write_gguf(tmp_path / "m.gguf", models(model_type))
    ours = AutoConfig.for_model(**open_source(path).config).to_dict()
    theirs = AutoConfig.from_pretrained(tmp_path, gguf_file=path.name).to_dict()
    for config in (ours, theirs):
        config.pop("_name_or_path")
    # Sizes for which transformers takes its class's default, though the file has them.
    left_out = {"gpt2": {"n_positions": 128}, "qwen3_moe": {"moe_intermediate_size": 32}}
    assert ours == theirs | left_out.get(model_type, {})
    assert ours["vocab_size"] == 300


def rope_divisors(kind: str, **settings) -> np.ndarray:
    """What a converter writes for a scaling: plain frequencies over scaled ones."""
    config = make_model("llama").config
    plain, _ = _frequencies("default", config, {"rope_theta": 10000.0})
    scaled, _ = _frequencies(kind, config, {"rope_theta": 10000.0, **settings})
    return (plain / scaled).numpy()


def _frequencies(kind, config, settings):
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = type(config).from_dict({**config.to_dict(), "rope_parameters": None})
    config.rope_parameters = {"rope_type": kind, **settings}
    made = LlamaRotaryEmbedding(config)
    return made.inv_freq, made.attention_scaling


LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def test_divisors_of_rotary_frequencies(tmp_path, models):
    """As Llama 3's files have them: without them every position but the first is turned wrongly."""
    divisors = rope_divisors("llama3", **LLAMA3)
    assert divisors.max() == 8.0 and divisors.min() == 1.0

    def add(writer):
        writer.add_tensor("rope_freqs.weight", divisors.astype(np.float32))

    source = open_source(write_gguf(tmp_path / "m.gguf", models("llama"), more=add))
    config = AutoConfig.for_model(**source.config)
    expected, _ = _frequencies("llama3", config, {"rope_theta": 10000.0, **LLAMA3})
    for length in (None, 10, 1000):  # of any length
        made, attention = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
        np.testing.assert_allclose(made, expected, rtol=1e-6)
        assert attention == 1.0
    assert "rope_freqs.weight" not in source.tensors
    divisors[4:] = 1e30
    again = open_source(write_gguf(tmp_path / "n.gguf", models("llama"), more=add))
    assert "rope_scaling" not in again.config


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", {"rope_type": "linear", "factor": 4.0}),
        ("yarn", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
        ("none", {"rope_type": "default"}),
    ],
)
def test_scaling_of_rotary_frequencies_in_metadata(tmp_path, models, kind, expected):
    def add(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(32)

    source = open_source(write_gguf(tmp_path / "m.gguf", models("llama"), more=add))
    found = AutoConfig.for_model(**source.config).rope_parameters
    assert {name: found[name] for name in expected} == expected
    assert found["rope_theta"] == 10000.0


def test_short_and_long_divisors(tmp_path, models):
    def add(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(32)
        writer.add_rope_scaling_attn_factors(1.25)
        writer.add_tensor("rope_factors_short.weight", np.full(8, 2, np.float32))
        writer.add_tensor("rope_factors_long.weight", np.full(8, 4, np.float32))

    source = open_source(write_gguf(tmp_path / "m.gguf", models("llama"), more=add))
    config = AutoConfig.for_model(**source.config)
    plain, _ = _frequencies("default", config, {"rope_theta": 10000.0})
    for length, divisor in ((32, 2), (33, 4)):
        made, attention = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
        np.testing.assert_allclose(made, plain / divisor)
        assert attention == 1.25


def test_text(tmp_path, models):
    path = write_gguf(tmp_path / "m.gguf", models("llama"))
    (tmp_path / "tokenizer.json").write_text("files of other models must not take part")
    source = open_source(path)
    files = source.text_files()
    (tmp_path / "tokenizer.json").unlink()
    made = Tokenizer.from_str(files["tokenizer.json"].decode())
    expected = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    for text in TEXTS:
        assert made.encode(text).ids == expected(text).input_ids
        assert made.decode(made.encode(text).ids) == text.replace("<|start|>", "").replace(
            "<|end|>", ""
        )
    settings = json.loads(files["tokenizer_config.json"])
    assert (settings["bos_token"], settings["eos_token"]) == ("<|start|>", "<|end|>")
    assert settings["add_bos_token"] is True
    assert files["chat_template.jinja"] == b"{{ messages[0]['content'] }}"
    assert json.loads(files["generation_config.json"]) == source.generation_config
    assert source.generation_config["eos_token_id"] == [258, 259]
    assert source.generation_config["bos_token_id"] == 259


def test_hashes(tmp_path, models):
    first = open_source(write_gguf(tmp_path / "a.gguf", models("llama")))
    same = open_source(write_gguf(tmp_path / "b.gguf", models("llama")))
    other = open_source(write_gguf(tmp_path / "c.gguf", models("llama"), "F16"))
    assert first.content_hash() == same.content_hash() != other.content_hash()
    assert first.header_hash() != other.header_hash()


def test_formats_are_those_of_the_gguf_package():
    for number, name in FORMAT_OF_TYPE.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name.lower() == name
        assert gguf.GGML_QUANT_SIZES[kind] == (FORMATS[name].block_len, FORMATS[name].block_bytes)


def test_every_packed_format_can_be_unpacked():
    rng = np.random.default_rng(0)
    from qeff.sources.gguf_tensor import unpack

    for name in FORMAT_OF_TYPE.values():
        form = FORMATS[name]
        if form.is_plain:
            continue
        blocks = rng.integers(0, 64, (3, form.block_bytes * 2), dtype=np.uint8)
        assert unpack(blocks, name).shape == (3, form.block_len * 2)


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe"])
def test_some_rows_are_those_of_the_whole(tmp_path, models, model_type):
    """Also where rows were moved, or come from several stored tensors."""
    source = open_source(write_gguf(tmp_path / "m.gguf", models(model_type), "Q8_0"))
    seen = 0
    for name, tensor in source.tensors.items():
        if not isinstance(tensor, RowReader):
            continue
        raw, values = tensor.raw(), tensor.read().reshape(len(tensor.raw()), -1)
        for start, stop in ((0, 1), (len(raw) // 3, len(raw) // 3 + 9), (len(raw) - 2, len(raw))):
            start = max(start, 0)
            np.testing.assert_array_equal(tensor.raw_rows(start, stop), raw[start:stop], name)
            np.testing.assert_array_equal(tensor.read_rows(start, stop), values[start:stop], name)
        seen += 1
    assert seen == len(source.tensors)
