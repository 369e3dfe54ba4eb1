"""What the CUDA engine's lowering puts into a container: formats, packed bytes and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from dialect import Size, build_random

from qeff.backends.cuda import layout
from qeff.compile.compiler import compile_graph
from qeff.compile.panels.encoding import code_rows
from qeff.compile.quality import Probe
from qeff.compile.quantize.row_scale import restore_fp8
from qeff.container import Container
from qeff.container.program import Program
from qeff.core.errors import CompileError, DeviceMissing, OptionValueError, ResourceError
from qeff.core.options import CompileOptions
from qeff.ops import validate

DOWN = "model.layers.0.mlp.down_proj.weight"
FORMAT = {
    "auto": "bf16", "fp32": "f32", "fp16": "f16", "bf16": "bf16", "int8": "q8_0", "int4": "q4_0",
    "mxfp8": "mxfp8", "mxfp6": "mxfp6", "mxfp4": "mxfp4", "fp8": "fp8",
}  # fmt: skip


def compiled(folder: Path, graph: Any, **options: Any) -> tuple[Container, dict[str, Any]]:
    chosen = CompileOptions(target="cuda", ctx_len=24, prefill_seq_len=8, **options)
    path = compile_graph(graph, chosen, text_files={}, provenance={}, out=folder / "c")
    container = Container.open(path, verify="full")
    data = json.loads(container.read_bytes("program.json"))
    validate(Program.from_json(data))
    return container, data


@pytest.mark.parametrize("precision", FORMAT)
def test_every_precision(precision: str, tmp_path: Path) -> None:
    graph, weights = build_random(Size())
    container, data = compiled(tmp_path, graph, precision=precision)
    form = FORMAT[precision]
    compute = {"fp32": "f32", "fp16": "f16"}.get(precision, "bf16")
    assert data["engine"] == {"layout": 1, "compute": compute, "kv": compute, "drawn": []}
    dtypes = {name: dtype for name, _, _, dtype in data["values"]}
    assert dtypes[DOWN] == form and dtypes["model.norm.weight"] == "f32"
    stored, values = container.weight(DOWN), np.asarray(weights[DOWN], np.float32)
    if form in ("f32", "f16", "bf16"):
        kind = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[form]
        assert stored.dtype == kind
        np.testing.assert_array_equal(stored, values.astype(kind))
        return
    scales = container.weight(DOWN + ".scales")
    coded, _ = code_rows(values, form)
    if form == "fp8":
        np.testing.assert_array_equal(stored, coded.codes)
        restored = restore_fp8(stored, scales)
        assert np.abs(restored - values).max() <= np.abs(values).max() / 16
        return
    expected = layout.pack_rows(form, coded.codes, coded.inner[0])
    np.testing.assert_array_equal(stored, expected[0])
    np.testing.assert_array_equal(scales, expected[1])


@pytest.mark.parametrize(("kv", "form"), [("bf16", "bf16"), ("fp8", "fp8"), ("mxint8", "mxint8")])
def test_caches(kv: str, form: str, tmp_path: Path) -> None:
    graph, _ = build_random(Size())
    container, data = compiled(tmp_path, graph, kv_precision=kv)
    assert data["engine"]["kv"] == form and container.manifest.precision["kv"] == kv


def test_a_cache_of_another_float_is_refused(tmp_path: Path) -> None:
    graph, _ = build_random(Size())
    with pytest.raises(CompileError, match="keeps its cache in bf16"):
        compiled(tmp_path, graph, kv_precision="fp16")


def test_an_override_to_another_float_is_refused(tmp_path: Path) -> None:
    graph, _ = build_random(Size())
    with pytest.raises(CompileError, match="keeps float matrices in bf16"):
        compiled(tmp_path, graph, precision_overrides=(("*down_proj*", "fp32"),))


def test_an_override_to_a_packed_format(tmp_path: Path) -> None:
    graph, _ = build_random(Size())
    _, data = compiled(tmp_path, graph, precision_overrides=(("*down_proj*", "mxfp6"),))
    dtypes = {name: dtype for name, _, _, dtype in data["values"]}
    assert dtypes[DOWN] == "mxfp6"
    assert dtypes["model.layers.0.mlp.up_proj.weight"] == "bf16"


@pytest.mark.parametrize("target", ["cpu", "ort", "reference"])
def test_other_targets_have_none_of_it(target: str) -> None:
    with pytest.raises(OptionValueError, match="no weights in fp8"):
        CompileOptions(target=target, precision="fp8")
    for kv in ("bf16", "fp8"):
        with pytest.raises(OptionValueError, match=f"no cache in {kv}"):
            CompileOptions(target=target, kv_precision=kv)


@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_without_the_device_quality_is_not_measured(target: str, tmp_path: Path, caplog) -> None:
    def build(name: str, error: ResourceError) -> Path:
        def run(container: Path, tokens: np.ndarray) -> np.ndarray:
            raise error

        graph, _ = build_random(Size())
        options = CompileOptions(target=target, ctx_len=32, precision="int8")
        probe = Probe(np.arange(4), "four tokens", run)
        out = tmp_path / name
        return compile_graph(graph, options, text_files={}, provenance={}, out=out, probe=probe)

    path = build("absent", DeviceMissing("it needs a GPU, and there is none", "find one"))
    certificate = json.loads((path / "certificate.json").read_bytes())
    assert certificate["unmeasured"] == "it needs a GPU, and there is none"
    assert "quality" not in certificate
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["the container's quality is not measured: it needs a GPU, and there is none"]
    # Anything else that is missing is an error, and leaves nothing behind.
    with pytest.raises(ResourceError, match="no memory"):
        build("full", ResourceError("no memory"))
    assert not (tmp_path / "full").exists()
