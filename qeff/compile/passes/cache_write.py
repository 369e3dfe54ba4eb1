"""A body for ``CacheWrite`` that runs in place: one TensorScatter, aliased with its input.

A padding row writes back what the cache held. Rows are laid out from the first token's position on
and wrap at the end of the cache, so that no two rows of a step ever meet, however much padding
follows.
"""

from __future__ import annotations

import onnx_ir as ir

DOMAIN = "qeff"

_TEXT = """
<ir_version: 11, opset_import: ["" : 24, "qeff" : 1]>
unused (float[1] a) => (float[1] b) { b = Identity(a) }

<domain: "qeff", opset_import: ["" : 24]>
CacheWrite (cache, update, position_ids) => (result)
{
    zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    axis_one = Constant<value_ints = [1]>()
    outer_axes = Constant<value_ints = [1, 3]>()
    first = Gather<axis = 1>(position_ids, zero)
    start = Max(first, zero)
    seq = Shape<start = 1, end = 2>(position_ids)
    seq_len = Squeeze(seq)
    steps = Range(zero, seq_len, one)
    begin = Unsqueeze(start, axis_one)
    unwrapped = Add(begin, steps)
    ctx = Shape<start = 2, end = 3>(cache)
    place = Mod(unwrapped, ctx)
    place_4d = Unsqueeze(place, outer_axes)
    update_shape = Shape(update)
    index = Expand(place_4d, update_shape)
    old = GatherElements<axis = 2>(cache, index)
    is_padding = Less(position_ids, zero)
    is_padding_4d = Unsqueeze(is_padding, outer_axes)
    rows = Where(is_padding_4d, old, update)
    result = TensorScatter<axis = 2, mode = "circular">(cache, rows, start)
}
"""


def cache_write() -> ir.Function:
    """The function, fresh, to be put into a model."""
    (function,) = ir.from_onnx_text(_TEXT).functions.values()
    return function
