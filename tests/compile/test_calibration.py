"""Calibration as part of compile: what the float model sees, better logits, equal bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from dialect import Size, eager, random_weights
from dialect import build as build_graph

from qeff.compile import compile_graph, container_folder
from qeff.compile.calibration import Calibration, Calibrator
from qeff.compile.dequantised import dequantise
from qeff.compile.matrices import split_weights
from qeff.compile.plan import plan
from qeff.compile.precision import Choice
from qeff.compile.quality import Probe, Reading
from qeff.compile.walk import Walk
from qeff.container import Container
from qeff.container.program import Op, Program, Value
from qeff.core.errors import CompileError, OptionValueError, UsageError
from qeff.core.options import CompileOptions, ExportOptions, TextFile
from qeff.ops import Step
from qeff.ops.interpreter import Interpreter

SIZE = Size(width=64, inner=128, layers=2)
TABLE, VALUE = "model.embed_tokens.weight", "model.layers.0.self_attn.v_proj.weight"
TOKENS = np.random.default_rng(5).integers(0, SIZE.vocab, (8, 48))
PAGE = np.random.default_rng(6).integers(0, SIZE.vocab, 48)


def run_floats(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """The container's weights, dequantised, on the reference."""
    container = Container.open(folder)
    program = Program.from_json(json.loads(container.read_bytes("program.json")))
    interpreter = Interpreter(*dequantise(program, container.weight))
    interpreter.reserve(1, len(tokens))
    at = np.arange(len(tokens))
    step = Step(at, at * 0, at, at, (np.zeros(1, np.int64),), interpreter.caches)
    return interpreter.run(tokens, step)


def structured(size: Size) -> tuple[Any, dict[str, np.ndarray]]:
    """A model whose activations are correlated and of different sizes, as trained ones are."""
    weights, rng = random_weights(size), np.random.default_rng(3)
    mixed = rng.standard_normal((size.vocab, 12)) @ rng.standard_normal((12, size.width))
    weights[TABLE] = weights[TABLE] / 8 + mixed / 3
    for name in weights:
        if name.endswith("norm.weight"):
            weights[name] = np.exp(0.7 * rng.standard_normal(size.width))
        # Calm enough for small errors to stay small.
        factor = {"q_proj": 1 / 8, "k_proj": 1 / 8, "o_proj": 0.3, "down_proj": 0.3, "norm": 1 / 8}
        weights[name] = weights[name] * factor.get(name.split(".")[-2], 1)
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    tensors = {name: ir.tensor(array, name=name) for name, array in weights.items()}
    return build_graph(size, tensors), weights


def build(out: Path, tokens: np.ndarray | None = TOKENS, size: Size = SIZE, **options: Any) -> Path:
    graph, _ = structured(size)
    calibration = None if tokens is None else Calibration(tokens, "random tokens")
    return compile_graph(
        graph,
        CompileOptions(ctx_len=64, **({"precision": "int4"} | options)),
        text_files={},
        provenance={},
        out=out,
        probe=Probe(PAGE, "random tokens", run_floats, calibration),
    )


def certificate(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "certificate.json").read_bytes()))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("precision", ["int4", "mxfp4", "mxfp6"])
def test_logits_come_nearer_and_bytes_are_the_same(tmp_path: Path, precision: str) -> None:
    kl = {}
    for method in ("none", "gptq"):
        folder = build(tmp_path / method, precision=precision, calibration=method)
        kl[method] = certificate(folder)["quality"]["kl"]
    assert kl["gptq"] < 0.6 * kl["none"] < 0.1
    again = build(tmp_path / "again", precision=precision, calibration="gptq")
    assert files(again) == files(tmp_path / "gptq")
    auto = build(tmp_path / "auto", precision=precision)
    assert files(auto)["weights.safetensors"] == files(again)["weights.safetensors"]


def test_the_certificate_says_what_was_done(tmp_path: Path) -> None:
    made = certificate(build(tmp_path / "a", calibration="importance"))["calibration"]
    assert made == {
        "method": "importance", "text": "random tokens", "tokens": TOKENS.size,
        "matrices": 12, "uncalibrated": [],
    }  # fmt: skip
    plain = build(tmp_path / "b", tokens=None)
    assert certificate(plain)["calibration"] == {"method": "none"}
    assert (
        files(plain)["weights.safetensors"]
        == files(build(tmp_path / "c", calibration="none"))["weights.safetensors"]
    )
    assert "calibration" not in certificate(build(tmp_path / "d", precision="fp16"))


def test_a_tied_table_is_rounded_for_the_head(tmp_path: Path) -> None:
    pairs = ((TABLE, "int4"),)
    kl = {
        method: certificate(
            build(tmp_path / method, precision_overrides=pairs, calibration=method)
        )["quality"]["kl"]
        for method in ("none", "gptq")
    }
    assert kl["gptq"] < 0.6 * kl["none"] < 0.1
    assert certificate(tmp_path / "gptq")["calibration"]["matrices"] == 13
    untied = build(tmp_path / "u", size=Size(tied=False), precision_overrides=(("*", "int4"),))
    # Seven products in each of two layers, and the head; a table that is only looked up has none.
    assert certificate(untied)["calibration"]["matrices"] == 15


def test_values_that_heads_share_keep_eight_bits(tmp_path: Path) -> None:
    def dtype(folder: Path) -> str:
        program = Program.from_json(json.loads((folder / "program.json").read_bytes()))
        return {value.name: value.dtype for value in program.weights()}[VALUE]

    assert dtype(build(tmp_path / "a")) == dtype(build(tmp_path / "b", precision="mxfp4")) == "q8_0"
    assert dtype(build(tmp_path / "c", precision="mxfp6")) == "mxfp6"
    named = build(tmp_path / "d", precision_overrides=(("*.v_proj*", "int4"),))
    assert dtype(named) == "q4_0"
    assert dtype(build(tmp_path / "e", size=Size(kv_heads=4))) == "q4_0"
    precision = Container.open(tmp_path / "a").manifest.precision
    assert precision["value"] == "int8" and precision["linear"] == "int4"


def test_a_walk_sees_what_the_model_does() -> None:
    graph, weights = structured(SIZE)
    program, tensors = plan(graph)
    head = next(e for e in split_weights(program) if "head" in e.roles)
    place = max(place for place, _ in head.uses)
    walk = Walk(program, Reading(tensors), TOKENS[:2])
    (hidden,) = walk.inputs_of(place)
    found = (hidden @ weights[TABLE].T).reshape(2, 48, -1)
    for row, tokens in zip(found, TOKENS, strict=False):
        np.testing.assert_allclose(row, eager(SIZE, weights, tokens.tolist()), atol=2e-3)
    with pytest.raises(AssertionError, match="passed"):
        walk.inputs_of(0)


def test_a_text_file_counts_by_its_content(tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("some words")
    two.write_text("some words")

    def folder(**options: Any) -> Path:
        return container_folder("m", "aa", ExportOptions(), CompileOptions(**options), "1")

    same = {folder(calibration_file=TextFile.read(path)) for path in (one, two)}
    assert len(same) == 1
    two.write_text("other words")
    others = [{}, {"calibration_file": TextFile.read(two)}, {"calibration": "none"}]
    assert len(same | {folder(**item) for item in others}) == 4
    options = CompileOptions(calibration_file=TextFile.read(one))
    assert CompileOptions.from_json(json.loads(json.dumps(options.to_json()))) == options


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(OptionValueError, match="cannot be read"):
        TextFile.read(tmp_path / "none.txt")
    with pytest.raises(UsageError, match="gpt"):
        CompileOptions(calibration="gpt")
    with pytest.raises(OptionValueError, match="no calibration"):
        CompileOptions(calibration="none", calibration_file=TextFile("00"))
    with pytest.raises(CompileError, match="ort has no calibration"):
        build(tmp_path / "c", target="ort", precision="int8", calibration="gptq")


def experts_program() -> tuple[Program, dict[str, Any]]:
    """tokens → table → router → the best two of four experts → head."""
    rng = np.random.default_rng(8)
    shapes = {"table": (50, 32), "router": (4, 32), "up": (4, 48, 32), "down": (4, 32, 48)}
    shapes["head"] = (50, 32)
    tensors = {
        name: ir.tensor(rng.standard_normal(shape).astype(np.float32), name=name)
        for name, shape in shapes.items()
    }
    weights = [Value(name, "weight", shape) for name, shape in shapes.items()]
    made = [("x", (32,)), ("scores", (4,)), ("best", (2,)), ("index", (2,)), ("y", (32,))]
    values = (
        Value("tokens", "token", (), "i64"),
        Value("positions", "token", (), "i64"),
        *weights,
        *(Value(n, "token", s, "i64" if n == "index" else "f32") for n, s in made),
        Value("logits", "token", (50,)),
    )
    at = {value.name: index for index, value in enumerate(values)}

    def op(kind: str, inputs: str, outputs: str, **attrs: Any) -> Op:
        places = [tuple(at[name] for name in names.split()) for names in (inputs, outputs)]
        return Op(kind, kind, *places, attrs)

    ops = (
        op("embed", "table tokens", "x"),
        op("linear", "x router", "scores"),
        op("topk", "scores", "best index", k=2, axis=0),
        op("moe", "x index best up down", "y", gate="none"),
        op("linear", "y head", "logits"),
    )
    return Program(values, ops, (), at["tokens"], at["positions"], at["logits"]), tensors


def test_experts_are_calibrated_as_far_as_their_inputs_are_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    program, tensors = experts_program()
    matrices = [(entry, Choice("q4_0", "int4")) for entry in split_weights(program)]
    text = Calibration(np.random.default_rng(9).integers(0, 50, (2, 30)), "random tokens")
    with caplog.at_level("WARNING"):
        made = Calibrator(program, tensors, (text, "auto"), matrices)
    assert "down" in caplog.text
    entries = {entry.source: entry for entry in made.in_order(entry for entry, _ in matrices)}
    found = {name: made.sensitivity(entry) for name, entry in entries.items()}
    table = tensors["table"].numpy()[text.tokens.reshape(-1)]
    expected = np.square(table).mean(0) / np.square(table).mean()
    assert found["up"] is not None and found["table"] is None and found["down"] is None
    np.testing.assert_allclose(found["up"].importance, expected, rtol=1e-4)
    assert found["head"] is not None and len(found["head"].factors) == 1
    assert made.report()["uncalibrated"] == ["down"] and made.report()["matrices"] == 3
