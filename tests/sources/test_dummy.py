"""Random weights from a config alone: the shapes that transformers wants, the same in every run."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from qeff.apps.cli.main import main
from qeff.container import Container
from qeff.core.errors import SourceError
from qeff.core.options import ExportOptions
from qeff.core.tensor import RowReader
from qeff.runtime import Batch, Span, open_session
from qeff.sources import dummy, locate, locate_dummy, open_source
from qeff.sources.dummy import RandomTensor

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "shape"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def test_shapes_are_those_of_transformers(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    source = open_source(locate_dummy(folder))
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in CONFIG.items() if k != "model_type"}))
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert {name: tensor.shape for name, tensor in source.tensors.items()} == shapes
    assert source.folder is None and source.gguf_file is None
    assert source.name == "shape-random" and source.kind == "random weights"


def test_values_are_random_and_the_same_every_time(folder: Path) -> None:
    one, two = (open_source(locate_dummy(folder)).tensors for _ in range(2))
    drawn = {name: one[name].read().astype(np.float32) for name in one}
    for name, values in drawn.items():
        assert np.array_equal(values, two[name].read().astype(np.float32)), name
    matrices = [name for name, values in drawn.items() if values.ndim > 1]
    everything = np.concatenate([drawn[name].ravel() for name in matrices])
    assert abs(everything.mean()) < 1e-3 and 0.019 < everything.std() < 0.021
    first, second = drawn[matrices[1]], drawn[matrices[2]]
    assert not np.array_equal(first.ravel()[:64], second.ravel()[:64])
    assert (drawn["model.norm.weight"] == 1).all()
    assert (RandomTensor("a.bias", (4,), "f32").read() == 0).all()


@pytest.mark.parametrize("form", ["f32", "bf16", "f16"])
def test_rows_are_drawn_apart(form: str, monkeypatch) -> None:
    monkeypatch.setattr(dummy, "PIECE_VALUES", 24)  # three rows
    tensor = RandomTensor("x.weight", (2, 5, 8), form)
    assert isinstance(tensor, RowReader)
    whole = tensor.read()
    flat = whole.reshape(10, 8)
    assert whole.shape == tensor.shape and whole.dtype == tensor.dtype
    for start in range(10):
        for stop in range(start, 11):
            assert np.array_equal(tensor.read_rows(start, stop), flat[start:stop])
            raw = tensor.raw_rows(start, stop)
            assert raw.dtype == np.uint8
            assert np.array_equal(raw.view(tensor.dtype), flat[start:stop])
    assert np.array_equal(tensor.raw().view(tensor.dtype), flat)
    assert len(np.unique(flat.astype(np.float32))) > 60  # pieces do not repeat each other


def test_rows_of_a_large_matrix_need_little_memory() -> None:
    import tracemalloc

    tensor = RandomTensor("lm_head.weight", (128_256, 4096), "bf16")
    tracemalloc.start()
    rows = tensor.read_rows(100_000, 100_100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows.shape == (100, 4096) and peak < 16 << 20


@pytest.mark.parametrize(
    ("said", "dtype"),
    [({"dtype": "float16"}, np.float16), ({"torch_dtype": "float32"}, np.float32), ({}, None)],
)
def test_the_config_decides_the_format(folder: Path, said: dict[str, str], dtype) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **said}))
    tensor = open_source(locate_dummy(folder / "config.json")).tensors["model.norm.weight"]
    assert tensor.read().dtype == (dtype or ml_dtypes.bfloat16)


def test_tied_and_merged_parameters_are_found(folder: Path) -> None:
    from qeff.transform import prepare

    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    source = open_source(locate_dummy(folder))
    assert "lm_head.weight" not in source.tensors
    assert prepare(source, ExportOptions()).unused == ()
    moe = {"model_type": "qwen3_moe", "architectures": None, "num_experts": 4}
    moe |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
    (folder / "config.json").write_text(json.dumps({**CONFIG, **moe}))
    assert prepare(open_source(locate_dummy(folder)), ExportOptions()).unused == ()


def test_a_checkpoint_and_its_dummy_are_told_apart(folder: Path, make_folder) -> None:
    real = make_folder({"w": np.zeros((2, 2), np.float32)})
    assert locate_dummy(real).content_hash() != locate(real).content_hash()
    assert all(path.suffix != ".safetensors" for path in locate_dummy(real).files)
    before = locate_dummy(folder).content_hash()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 32}))
    assert locate_dummy(folder).content_hash() != before


def test_what_cannot_be_made_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="need a config"):
        locate_dummy(None)
    with pytest.raises(SourceError, match=r"no config\.json in"):
        locate_dummy(tmp_path)
    for changed, said in (
        ({"model_type": "lama"}, "unknown model type 'lama'"),
        ({"model_type": "vit"}, "no model can be made"),
        ({"hidden_size": "wide"}, "no model can be made"),
    ):
        (folder / "config.json").write_text(json.dumps({**CONFIG, **changed}))
        with pytest.raises(SourceError, match=said):
            open_source(locate_dummy(folder)).tensors  # noqa: B018


def test_only_files_count(folder: Path) -> None:
    before = locate_dummy(folder).content_hash()
    (folder / "runs.json").mkdir()
    assert locate_dummy(folder).content_hash() == before


def test_a_container_says_that_its_weights_are_random(folder: Path, capsys) -> None:
    words = ["--model-name", str(folder), "--load-format", "dummy", "--target", "ort"]
    assert main(["compile", *words, "--ctx-len", "16"]) == 0
    opened = Container.open(capsys.readouterr().out.strip())
    source = opened.manifest.provenance["source"]
    assert (source["kind"], source["name"]) == ("random weights", "shape-random")
    certificate = json.loads(opened.read_bytes("certificate.json"))
    assert certificate["export"]["method"] == "twin"
    session = open_session(opened)
    session.reserve(1)
    tokens = np.arange(16)
    batch = Batch(tokens, tokens, (Span(0, 16, (0,)),), tokens)
    logits = session.step(batch).logits
    session.close()
    assert np.isfinite(logits).all() and logits.std() > 0.01
    assert main(["infer", *words, "--prompt", "x", "--ctx-len", "16"]) == 1
    assert "no tokenizer.json" in capsys.readouterr().err
    assert main(["bench", "--load-format", "dummy"]) == 1
    assert "need a config" in capsys.readouterr().err
