"""Build for ONNX Runtime: the folded graph in the precision asked for, its weights beside it.

``program.onnx`` holds nodes and small constants; larger ones lie in ``weights.safetensors``, which
ONNX Runtime maps as external data. Rows of a step are cache slots, and only wanted tokens reach
the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from qeff.compile.lowering import SectionWriter, refuse_overrides
from qeff.compile.passes.constants import sizes
from qeff.compile.passes.fold import fold, values_of
from qeff.compile.passes.rows_are_slots import rows_are_slots
from qeff.compile.passes.select_logits import select_logits
from qeff.compile.passes.transposed_matmul import transposed_matmul
from qeff.compile.quantize.block_matmul import Quantised, halve_embeddings, quantise_matmuls
from qeff.compile.quantize.blocks import FORMATS
from qeff.compile.quantize.half import halve_caches, to_half
from qeff.container.format import WEIGHTS
from qeff.container.manifest import Port
from qeff.core.errors import CompileError
from qeff.core.formats import format_of
from qeff.core.options import CompileOptions
from qeff.core.progress import log

if TYPE_CHECKING:
    from qeff.export.artifact import Graph

PROGRAM = "program.onnx"
INLINE_BYTES = 1024  # smaller constants stay in the program

# MXFP6 and MXFP4 are exact in blocks of 8 bits; MXFP8 is not, and gets the nearest there is.
_NEAREST = {"auto": "fp32", "bf16": "fp32", "mxfp8": "int8"}
_EXPERTS = ("MoE", "MoEBias")
_NEAREST_KV = {"mxint8": "fp16"}


def lower(graph: Graph, options: CompileOptions, out: SectionWriter) -> None:
    """Hand over program.onnx and the weights it points to."""
    refuse_overrides(options)
    model = graph.model.clone()
    rows_are_slots(model)
    precision, kv = _resolve(options)
    if precision == "fp32":
        transposed_matmul(model)  # ONNX Runtime packs either order at load, equally fast
    fold(model)
    select_logits(model)
    done = _convert(model, precision, kv, out)
    _place_weights(model, done, out)
    out.inputs = tuple(_port(value) for value in model.graph.inputs)
    out.outputs = tuple(_port(value) for value in model.graph.outputs)
    out.write_bytes(PROGRAM, ir.to_proto(model).SerializeToString(deterministic=True))


def _resolve(options: CompileOptions) -> tuple[str, str]:
    """The precisions of weights and caches that ONNX Runtime has, nearest to those asked for."""
    precision = _NEAREST.get(options.precision, options.precision)
    if precision != options.precision and options.precision != "auto":
        log.warning("ONNX Runtime has no %s: weights are kept as %s", options.precision, precision)
    kv = _NEAREST_KV.get(options.kv_precision, options.kv_precision)
    if kv != options.kv_precision:
        log.warning("ONNX Runtime has no %s: the cache is kept as %s", options.kv_precision, kv)
    if kv == "auto":
        kv = "fp16" if precision == "fp16" else "fp32"
    if precision == "fp16" and kv == "fp32":
        raise CompileError(
            "ONNX Runtime cannot keep an fp32 cache beside fp16 weights",
            "leave the cache's precision out",
        )
    return precision, kv


def _convert(model: ir.Model, precision: str, kv: str, out: SectionWriter) -> Quantised:
    """Bring weights and caches to their precision, and say which class got which."""
    done = Quantised()
    classes = dict.fromkeys(("linear", "head", "embedding", "other"), "fp32")
    if precision == "fp16":
        to_half(model)
        classes = dict.fromkeys(classes, "fp16")
    elif precision in FORMATS:
        done = quantise_matmuls(model, precision, head_precision="int8")
        halve_embeddings(model)
        classes |= {"linear": precision, "head": "int8", "embedding": "fp16"}
        out.add_report("quantisation", done.report.summary)
    if kv == "fp16" and precision != "fp16":
        halve_caches(model)
    if any(node.op_type in _EXPERTS for node in model.graph):
        classes["experts"] = "fp32"  # their function has no kernel for anything else
    out.precision = {**classes, "kv": kv}
    return done


def _place_weights(model: ir.Model, done: Quantised, out: SectionWriter) -> None:
    """Promise every large constant, in the order of first use, and point the graph at its place."""
    initializers = model.graph.initializers
    used = [value for node in model.graph for value in node.inputs if value is not None]
    names = dict.fromkeys(str(value.name) for value in used if value.name in initializers)
    in_groups = {spec.name for group in done.groups.values() for spec in group.specs}
    external: list[ir.Value] = []
    for name in names:
        tensor = initializers[name].const_value
        assert tensor is not None, f"{name} has no value"
        if name in in_groups:
            external.append(initializers[name])
            if name in done.groups:
                out.add_weights(done.groups[name].specs, done.groups[name].produce)
        elif tensor.nbytes >= INLINE_BYTES:
            external.append(initializers[name])
            _promise(name, tensor, out)
        else:
            initializers[name].const_value = ir.tensor(values_of(tensor).copy(), name=name)
    places = out.places()
    for value in external:
        old, entry = value.const_value, places[str(value.name)]
        assert old is not None
        value.const_value = ir.ExternalTensor(
            WEIGHTS,
            entry.start,
            entry.stop - entry.start,
            old.dtype,
            shape=ir.Shape(sizes(old)),
            name=entry.name,
        )


def _promise(name: str, tensor: ir.TensorProtocol, out: SectionWriter) -> None:
    out.add_weight(
        name, sizes(tensor), format_of(tensor.dtype.numpy()).name, lambda: values_of(tensor)
    )


def _port(value: ir.Value) -> Port:
    assert value.shape is not None and value.dtype is not None, f"{value.name} has no type"
    shape = tuple(size if isinstance(size, int) else str(size.value) for size in value.shape)
    return Port(str(value.name), format_of(value.dtype.numpy()).name, shape)
