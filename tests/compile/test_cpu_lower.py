"""Lowering for the native engine: formats by role, sizes as documented, weights that are the same.

What a container holds is turned back into floats and run by the numpy reference, so a matrix that
is lost, turned or packed wrongly shows in the logits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from dialect import Size, build, build_random, eager, random_weights

from qeff.backends.reference.session import Interpreter, ReferenceSession
from qeff.compile import compile_graph
from qeff.compile.dequantised import dequantise
from qeff.compile.matrices import matrix_values, split_weights
from qeff.compile.panels import panel_shape
from qeff.compile.plan import plan
from qeff.container import Container
from qeff.container.program import Program
from qeff.core.errors import CompileError, OptionTypeError, OptionValueError, UsageError
from qeff.core.options import PRECISIONS, CompileOptions, ExportOptions
from qeff.ops import validate
from qeff.runtime.session import Batch, Capabilities, Span

# The largest difference of a logit, as a part of the largest logit.
TOLERANCE = {
    "auto": 5e-3, "fp32": 2e-6, "fp16": 5e-3, "bf16": 0.04, "int8": 0.1, "int4": 0.9, "mxfp8": 0.4,
    "mxfp6": 0.4, "mxfp4": 1.5,
}  # fmt: skip
FORMAT = {
    "auto": "f16", "fp32": "f32", "fp16": "f16", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0",
    "mxfp8": "mxfp8", "mxfp6": "mxfp6", "mxfp4": "mxfp4",
}  # fmt: skip
HIGHER = {name: form if name in PRECISIONS[:4] else "q8_0" for name, form in FORMAT.items()}
DOWN = "model.layers.0.mlp.down_proj.weight"
TABLE = "model.embed_tokens.weight"


class Opened:
    """A compiled container and its program, checked as an engine would."""

    def __init__(self, folder: Path, graph: Any, **options: Any) -> None:
        chosen = CompileOptions(target="cpu", ctx_len=24, prefill_seq_len=8, **options)
        path = compile_graph(graph, chosen, text_files={}, provenance={}, out=folder / "c")
        self.container = Container.open(path, verify="full")
        self.json = json.loads(self.container.read_bytes("program.json"))
        self.program = Program.from_json(self.json)
        validate(self.program)
        self.values = {v.name: v for v in self.program.weights()}
        self.precision = self.container.manifest.precision
        self.certificate = json.loads(self.container.read_bytes("certificate.json"))

    def logits(self, tokens: list[int]) -> np.ndarray:
        program, arrays = dequantise(self.program, self.container.weight)
        vocab = self.program.values[self.program.logits].shape[0]
        caps = Capabilities(vocab, 32, 16, 1, 32)
        session = ReferenceSession(Interpreter(program, arrays), caps)
        session.reserve(2)
        count = np.arange(len(tokens))
        spans = (Span(0, len(tokens), (1, 0)),)
        return session.step(Batch(np.array(tokens), count, spans, count)).logits

    def check_sizes(self) -> None:
        """Every stored tensor has the bytes that docs/panels.md gives it."""
        stacks = matrix_values(self.program)
        for index, value in enumerate(self.program.values):
            if value.kind != "weight":
                continue
            stored = self.container.weight(value.name)
            if index in stacks:
                shape = value.shape if stacks[index] else (value.shape[0], -1)
                shape = shape if -1 not in shape else (shape[0], int(np.prod(value.shape[1:])))
                assert stored.shape == panel_shape(value.dtype, shape)
                assert stored.dtype == np.uint8
            else:
                assert stored.shape == value.shape and value.dtype in ("f32", "i64", "i32", "bool")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("precision", FORMAT)
def test_a_llama_in_every_precision(precision: str, tied: bool, tmp_path: Path) -> None:
    size = Size(tied=tied)
    graph, weights = build_random(size)
    made = Opened(tmp_path, graph, precision=precision)
    made.check_sizes()
    assert made.values[DOWN].dtype == FORMAT[precision]
    assert made.values[TABLE].dtype == HIGHER[precision]
    assert made.values["model.norm.weight"].dtype == "f32"
    if not tied:
        assert made.values["lm_head.weight"].dtype == HIGHER[precision]
    names = ("linear", "head", "embedding", "other")
    label = "fp16" if precision == "auto" else precision
    higher = label if precision in PRECISIONS[:4] else "int8"
    assert [made.precision[name] for name in names] == [label, higher, higher, "fp32"]
    kv = "fp32" if precision == "fp32" else "fp16"
    assert made.json["engine"] == {"layout": 2, "kv": kv} and made.precision["kv"] == kv
    tokens = np.random.default_rng(0).integers(0, size.vocab, 20).tolist()
    expected = eager(size, weights, tokens)
    worst = np.abs(made.logits(tokens) - expected).max() / np.abs(expected).max()
    assert worst <= TOLERANCE[precision]
    is_quantised = FORMAT[precision] not in ("f32", "f16", "bf16")
    assert ("quantisation" in made.certificate) == is_quantised
    if is_quantised:
        found = made.certificate["quantisation"]
        assert found["linear"]["tensors"] == 12 and found["value"]["tensors"] == 2
        assert 0 < found["linear"]["relative_rms_error"] < 0.2


def test_one_tensor_serves_a_tied_table(tmp_path: Path) -> None:
    made = Opened(tmp_path, build_random(Size(tied=True))[0], precision="int4")
    reads = [
        op.kind
        for op in made.program.ops
        for i in op.inputs
        if i >= 0 and made.program.values[i].name == TABLE
    ]
    assert sorted(reads) == ["embed", "linear"]
    assert len([name for name in made.values if name.startswith(TABLE)]) == 1


def test_overrides_choose_by_name_and_the_last_one_counts(tmp_path: Path) -> None:
    pairs = (("*.mlp.*", "mxfp4"), ("*down_proj*", "int8"), ("*.1.mlp.down_proj.*", "fp32"))
    graph, _ = build_random(Size())
    made = Opened(tmp_path, graph, precision="int4", precision_overrides=pairs)
    assert made.values["model.layers.0.mlp.up_proj.weight"].dtype == "mxfp4"
    assert made.values[DOWN].dtype == "q8_0"
    assert made.values["model.layers.1.mlp.down_proj.weight"].dtype == "f32"
    assert made.values["model.layers.0.self_attn.q_proj.weight"].dtype == "q4_0"
    assert made.precision["linear"] == "fp32+int4+int8+mxfp4"
    assert made.container.manifest.options.precision_overrides == pairs
    table = Opened(
        tmp_path / "table", graph, precision="int4", precision_overrides=((TABLE, "int4"),)
    )
    assert table.values[TABLE].dtype == "q4_0"


def test_an_override_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    graph, _ = build_random(Size())
    with pytest.raises(OptionValueError, match="down_prog") as caught:
        Opened(tmp_path, graph, precision_overrides=(("model.layers.0.mlp.down_prog*", "int8"),))
    assert DOWN in str(caught.value)
    with pytest.raises(OptionValueError):  # a norm is no matrix
        Opened(tmp_path, graph, precision_overrides=(("model.norm.weight", "int8"),))


def test_overrides_are_checked_and_survive_json() -> None:
    with pytest.raises(UsageError, match="int9"):
        CompileOptions(precision_overrides=(("*", "int9"),))
    with pytest.raises(OptionTypeError):
        CompileOptions(precision_overrides=["*=int8"])  # type: ignore[arg-type]
    options = CompileOptions(precision_overrides=(("*.a", "int8"), ("*.b", "fp16")))
    again = CompileOptions.from_json(json.loads(json.dumps(options.to_json())))
    assert again == options


@pytest.mark.parametrize("target", ["ort", "reference"])
def test_targets_with_one_precision_refuse_overrides(target: str, tmp_path: Path) -> None:
    graph, _ = build_random(Size())
    options = CompileOptions(target=target, precision_overrides=(("*", "fp32"),))
    with pytest.raises(CompileError, match="single weights"):
        compile_graph(graph, options, text_files={}, provenance={}, out=tmp_path / "c")


@pytest.mark.parametrize("kv", ["fp16", "fp32", "mxint8"])
def test_the_cache_has_the_precision_asked_for(kv: str, tmp_path: Path) -> None:
    made = Opened(tmp_path, build_random(Size(layers=1))[0], kv_precision=kv)
    assert made.json["engine"]["kv"] == made.precision["kv"] == kv


def test_a_weight_that_is_no_number_is_refused(tmp_path: Path) -> None:
    arrays = random_weights(Size(layers=1))
    arrays[DOWN] = arrays[DOWN].copy()
    arrays[DOWN][3, 5] = np.nan
    graph = build(Size(layers=1), {name: ir.tensor(a, name=name) for name, a in arrays.items()})
    with pytest.raises(CompileError, match=DOWN):
        Opened(tmp_path, graph, precision="int8")


def test_a_weight_too_large_for_a_half_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = random_weights(Size(layers=1))
    arrays[DOWN] = arrays[DOWN] * np.float32(1e6)
    graph = build(Size(layers=1), {name: ir.tensor(a, name=name) for name, a in arrays.items()})
    Opened(tmp_path, graph)
    assert [m for m in caplog.messages if "outside the range" in m] == [
        f"the weight {DOWN} has values outside the range of fp16"
    ]


def test_weights_are_read_when_they_are_written(tmp_path: Path) -> None:
    """Lowering itself reads nothing but small constants."""
    from qeff.backends.cpu.lower import lower
    from qeff.compile.lowering import SectionWriter

    reads: list[str] = []

    def lazy(name: str, array: np.ndarray) -> ir.LazyTensor:
        def read() -> ir.TensorProtocol:
            reads.append(name)
            return ir.tensor(array, name=name)

        return ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape(array.shape), name=name)

    graph = build(Size(), {name: lazy(name, a) for name, a in random_weights(Size()).items()})
    section = SectionWriter()
    lower(graph, CompileOptions(target="cpu", precision="int4"), section)  # type: ignore[arg-type]
    assert reads == []
    places = section.places()
    assert {spec.name for group in section.groups for spec in group.specs} == set(places)


def _transformers_graph(name: str, folder: Path) -> tuple[Any, Any]:
    """The graph of a tiny transformers model, and the model."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
    import torch
    from architectures import ROWS
    from transformers import AutoConfig, AutoModelForCausalLM

    from qeff.export.exporter import draw
    from qeff.sources import open_source
    from qeff.transform import prepare

    model_type, sizes = ROWS[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **sizes)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(noise if parameter.dim() > 1 else parameter + noise)
    model.save_pretrained(folder)
    return draw(prepare(open_source(str(folder)), ExportOptions())), model


def _eager(model: Any, tokens: list[int]) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens])).logits[0].numpy()


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return _transformers_graph("qwen3_moe", tmp_path_factory.mktemp("experts"))


@pytest.mark.parametrize("precision", FORMAT)
def test_experts_in_every_precision(
    precision: str, experts: tuple[Any, Any], tmp_path: Path
) -> None:
    graph, model = experts
    made = Opened(tmp_path, graph, precision=precision)
    made.check_sizes()
    moe = [op for op in made.program.ops if op.kind == "moe"]
    assert len(moe) == 2
    for op in moe:
        up, down = (made.program.values[i] for i in op.inputs[3:5])
        assert up.dtype == down.dtype == FORMAT[precision] and len(up.shape) == 3
        assert op.attrs["transposed"] is False
    # What chooses the experts stays exact: another choice would be another function.
    assert made.values["model.layers.0.mlp.gate.weight"].dtype == "f32"
    assert made.precision["experts"] == ("fp16" if precision == "auto" else precision)
    if precision in ("fp32", "fp16"):
        tokens = np.random.default_rng(1).integers(3, 120, 12).tolist()
        expected = _eager(model, tokens)
        worst = np.abs(made.logits(tokens) - expected).max() / np.abs(expected).max()
        assert worst <= (1e-5 if precision == "fp32" else 2e-2)


def test_matrices_that_lie_transposed_are_turned(tmp_path: Path) -> None:
    graph, model = _transformers_graph("gpt2", tmp_path / "model")
    planned, _ = plan(graph)
    turned = [entry for entry in split_weights(planned) if entry.is_transposed]
    assert turned, "the model has matrices stored as [in, out]"
    made = Opened(tmp_path, graph, precision="fp32")
    made.check_sizes()
    for entry in turned:
        planned_shape = next(v.shape for v in planned.weights() if v.name == entry.source)
        assert made.values[entry.name].shape == planned_shape[::-1]
    assert not any(op.attrs.get("transposed") for op in made.program.ops)
    tokens = np.random.default_rng(1).integers(3, 120, 12).tolist()
    expected = _eager(model, tokens)
    assert np.abs(made.logits(tokens) - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [("llama", "Q4_0"), ("llama", "Q4_1"), ("llama", "Q5_0"), ("qwen3_moe", "Q8_0")],
)
def test_packed_checkpoints_stay_as_they_are(model_type: str, kind: str, tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "sources"))
    from gguf_models import make_model, write_gguf

    from qeff.export.exporter import draw
    from qeff.sources import open_source
    from qeff.transform import prepare

    path = write_gguf(tmp_path / "tiny.gguf", make_model(model_type), kind)
    source = open_source(str(path))
    made = Opened(tmp_path, draw(prepare(source, ExportOptions())))
    made.check_sizes()
    form = "q8_0" if kind == "Q5_0" else kind.lower()
    matrices = [v for v in made.values.values() if len(v.shape) > 1 and v.dtype != "f32"]
    assert matrices and {v.dtype for v in matrices} == {form}
    assert made.precision["linear"] == form
    assert "quantisation" not in made.certificate  # nothing was lost
    _, arrays = dequantise(made.program, made.container.weight)
    for value in matrices:
        np.testing.assert_array_equal(arrays[value.name], source.tensors[value.name].read())


def test_a_packed_format_without_kernels_is_converted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "sources"))
    from gguf_models import make_model, write_gguf

    from qeff.export.exporter import draw
    from qeff.sources import open_source
    from qeff.transform import prepare

    path = write_gguf(tmp_path / "tiny.gguf", make_model("llama"), "Q5_1")
    made = Opened(tmp_path, draw(prepare(open_source(str(path)), ExportOptions())))
    assert {v.dtype for v in made.values.values()} == {"f32", "q8_0"}
    assert any("q5_1 become q8_0" in message for message in caplog.messages)
    told = made.certificate["quantisation"]["q5_1 as q8_0"]
    assert 0 < told["relative_rms_error"] < 0.01
