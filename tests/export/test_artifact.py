"""A graph on disk: no weights in it, taken from the checkpoint again, or made to stand alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch_file
from safetensors.torch import save_file as save_torch_file
from transformers import AutoConfig

from qeff.core.errors import ParityError, SourceError
from qeff.core.options import ExportOptions
from qeff.export import Graph, export, materialize
from qeff.export.exporter import draw
from qeff.export.parity import compare
from qeff.sources import open_source
from qeff.transform import prepare
from qeff.transform.quiet import quiet_transformers
from qeff.transform.reference import EagerReference, make_twin, random_model

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    with quiet_transformers():
        model = random_model(AutoConfig.for_model("mixtral", **SMALL, num_local_experts=4))
        model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def graph(checkpoint: Path) -> Graph:
    return export(prepare(open_source(checkpoint), ExportOptions()))


def test_certificate_says_what_was_done(graph: Graph) -> None:
    record = graph.certificate
    assert record["method"] == "weights"
    assert record["equal_greedy_tokens"] == record["tokens_compared"] == 28
    assert record["max_abs_error"] < 1e-4
    assert {"torch", "transformers", "onnxruntime"} <= set(record["versions"])


def test_initialisers_are_checkpoint_tensors(graph: Graph, checkpoint: Path) -> None:
    stored = graph.checkpoint_tensors()
    assert set(stored) == set(open_source(checkpoint).tensors)
    assert all(t.lazy.location is not None for t in stored.values())
    assert {t.lazy.format for t in stored.values()} == {"bf16"}


def test_saved_without_weights_and_loaded_again(
    graph: Graph, checkpoint: Path, tmp_path: Path
) -> None:
    graph.save(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 100_000
    proto = onnx.load(tmp_path / "graph.onnx", load_external_data=False)
    places = {t.name: {e.key: e.value for e in t.external_data} for t in proto.graph.initializer}
    name = "model.layers.0.self_attn.q_proj.weight"
    place = places[name]
    data = (checkpoint / place["location"]).read_bytes()
    part = data[int(place["offset"]) : int(place["offset"]) + int(place["length"])]
    assert part == load_file(checkpoint / "model.safetensors")[name].tobytes()
    again = Graph.load(tmp_path, open_source(checkpoint).tensors)
    assert again.spec == graph.spec and again.options == graph.options
    assert again.certificate == graph.certificate
    assert again.describe()["ops"] == graph.describe()["ops"]
    assert set(again.checkpoint_tensors()) == set(graph.checkpoint_tensors())


def test_loading_needs_the_same_tensors(graph: Graph, checkpoint: Path, tmp_path: Path) -> None:
    graph.save(tmp_path)
    tensors = dict(open_source(checkpoint).tensors)
    del tensors["model.norm.weight"]
    with pytest.raises(SourceError, match=r"no tensor model\.norm\.weight"):
        Graph.load(tmp_path, tensors)
    with pytest.raises(SourceError, match="holds no graph"):
        Graph.load(tmp_path / "nothing", tensors)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("graph.onnx", lambda data: data[: len(data) // 2]),
        ("graph.onnx", lambda data: b""),  # a model without nodes, for who reads it
        ("graph.onnx", lambda data: data.replace(b"MatMul", b"MatMux", 1)),
        ("graph.json", lambda data: data[:50]),
        ("graph.json", lambda data: b"[]"),
        ("graph.json", lambda data: data.replace(b"vocab_size", b"vocab_sise")),
        ("graph.json", lambda data: data.replace(b"trust_remote_code", b"trust")),
    ],
)
def test_damage_is_seen_before_the_graph_is_used(
    file: str, damage, graph: Graph, checkpoint: Path, tmp_path: Path
) -> None:
    graph.save(tmp_path)
    before = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(damage(before))
    assert (tmp_path / file).read_bytes() != before
    with pytest.raises(SourceError, match="holds no graph"):
        Graph.load(tmp_path, open_source(checkpoint).tensors)


def test_standalone_links_the_weights(graph: Graph, checkpoint: Path, tmp_path: Path) -> None:
    materialize(graph, tmp_path)
    linked = tmp_path / "model.safetensors"
    assert linked.samefile(checkpoint / "model.safetensors")


class Packed:
    """A tensor whose stored bytes are not its values."""

    location = None

    def __init__(self, tensor) -> None:
        self.name, self.shape, self.format = tensor.name, tensor.shape, "q8_0"
        self.values = tensor.read().astype(np.float32)

    def read(self) -> np.ndarray:
        return self.values


def test_packed_weights_are_streamed_as_floats(checkpoint: Path, tmp_path: Path) -> None:
    source = open_source(checkpoint)
    packed = {name: Packed(tensor) for name, tensor in source.tensors.items()}

    class PackedSource:
        name, kind, config, tensors = "packed", "gguf", source.config, packed
        folder, gguf_file = None, None

        def header_hash(self) -> str:
            return "0"

    prepared = prepare(PackedSource(), ExportOptions())  # type: ignore[arg-type]
    graph = draw(prepared)
    path = materialize(graph, tmp_path)
    assert path.with_name(path.name + ".data").stat().st_size > 100_000
    with prepare(source, ExportOptions()).reference() as reference:
        assert reference.method == "weights"
        assert compare(path, graph, reference).is_equal


def test_an_export_that_differs_fails(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = EagerReference.logits

    def wrong(self: EagerReference, tokens, steps) -> np.ndarray:
        return right(self, tokens, steps) + 0.01

    monkeypatch.setattr(EagerReference, "logits", wrong)
    with pytest.raises(ParityError, match=r"off by 0\.01"):
        export(prepare(open_source(checkpoint), ExportOptions()))


def test_weights_that_are_no_numbers(checkpoint: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "tiny")
    weights = load_torch_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = torch.nan
    save_torch_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(SourceError, match="no finite numbers"):
        export(prepare(open_source(folder), ExportOptions()))


def test_a_large_model_is_stood_for_by_a_twin(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qeff.transform.reference.MAX_LOADED_PARAMS", 10)
    graph = export(prepare(open_source(checkpoint), ExportOptions()))
    assert graph.certificate["method"] == "twin"
    assert "more than 10" in graph.certificate["reason"]


def test_two_exports_are_byte_equal(tmp_path: Path) -> None:
    for name in ("a", "b"):
        config = AutoConfig.for_model("llama", **SMALL)
        twin = make_twin(config, tmp_path / "tiny", ExportOptions())
        assert twin.prepared is not None
        draw(twin.prepared).save(tmp_path / name)
    for file in ("graph.onnx", "graph.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
