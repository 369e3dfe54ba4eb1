"""Rules for the usual layers of a network: matrix products, norms, convolutions."""

from __future__ import annotations

import onnx_ir as ir
import torch

from qeff.export.emission.table import arg, aten, overloads, rule
from qeff.export.emitter import Emitter
from qeff.export.fxnode import Node


@rule(aten.linear.default)
def _linear(e: Emitter, node: Node) -> ir.Value:
    x, weight, bias = node.args[0], node.args[1], arg(node, 2, "bias")
    turned = e.op("Transpose", [e.value(weight)], {"perm": [1, 0]})
    out = e.op("MatMul", [e.value(x), turned], node=node)
    return out if bias is None else e.op("Add", [out, e.value(bias)], node=node)


@rule(aten.matmul.default, aten.bmm.default, aten.mm.default, *overloads("mv", "default"))
def _matmul(e: Emitter, node: Node) -> ir.Value:
    return e.op("MatMul", [e.value(a) for a in node.args[:2]], node=node)


@rule(aten.addmm.default, aten.baddbmm.default)
def _addmm(e: Emitter, node: Node) -> ir.Value:
    bias, left, right = node.args[:3]
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    out = e.op("MatMul", [e.value(left), e.value(right)], node=node)
    if alpha != 1:
        out = e.op("Mul", [out, e.scalar(alpha, e.dtype(node))])
    if beta == 0:
        return out
    more = e.value(bias)
    if beta != 1:
        more = e.op("Mul", [more, e.scalar(beta, e.dtype(node))])
    return e.op("Add", [out, more], node=node)


@rule(aten.layer_norm.default)
def _layer_norm(e: Emitter, node: Node) -> ir.Value:
    x, shape = node.args[:2]
    weight, bias, eps = arg(node, 2, "weight"), arg(node, 3, "bias"), arg(node, 4, "eps", 1e-5)
    dtype = e.dtype(node)
    scale = e.value(weight) if weight is not None else e.constant(torch.ones(shape, dtype=dtype))
    inputs = [e.value(x), scale, *([e.value(bias)] if bias is not None else [])]
    attrs = {"axis": -len(shape), "epsilon": float(eps)}
    return e.op("LayerNormalization", inputs, attrs, node=node)


@rule(*overloads("rms_norm", "default"))
def _rms_norm(e: Emitter, node: Node) -> ir.Value:
    x, shape = node.args[:2]
    weight, eps = arg(node, 2, "weight"), arg(node, 3, "eps")
    dtype = e.dtype(node)
    scale = e.value(weight) if weight is not None else e.constant(torch.ones(shape, dtype=dtype))
    eps = torch.finfo(dtype).eps if eps is None else eps
    attrs = {"axis": -len(shape), "epsilon": float(eps)}
    return e.op("RMSNormalization", [e.value(x), scale], attrs, node=node)


@rule(aten.conv1d.default, aten.conv2d.default)
def _convolution(e: Emitter, node: Node) -> ir.Value:
    x, weight, bias = node.args[0], node.args[1], arg(node, 2, "bias")
    rank = len(e.kind(node).dims) - 2
    stride, padding = arg(node, 3, "stride", [1] * rank), arg(node, 4, "padding", [0] * rank)
    dilation, groups = arg(node, 5, "dilation", [1] * rank), arg(node, 6, "groups", 1)
    attrs = {
        "strides": stride,
        "pads": [*padding, *padding],
        "dilations": dilation,
        "group": groups,
    }
    inputs = [e.value(x), e.value(weight), *([e.value(bias)] if bias is not None else [])]
    return e.op("Conv", inputs, attrs, node=node)


@rule(aten.einsum.default)
def _einsum(e: Emitter, node: Node) -> ir.Value:
    values = [e.value(a) for a in node.args[1]]
    return e.op("Einsum", values, {"equation": node.args[0]}, node=node)
