"""The ops of the domain ``qeff`` as ONNX functions: bodies of standard ops, in ONNX's text form.

Each body gives the documented meaning (docs/graph.md) in ONNX Runtime as it is. The bodies of MoE
are made for the attributes that a graph uses, since a function cannot choose by a string.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from qeff.export.builder import DOMAIN, OPSET

LOWEST = "-3.4028234663852886e38"

# A row's positions rise by one from its first, so its S rows of the cache are start, start + 1, …
# Places of padding get back what they hold: they are read first, then one op writes them all. At
# the end of the context the places of padding wrap round to rows that are likewise put back.
CACHE_WRITE = """
CacheWrite (cache, update, position_ids) => (written) {
  zero = Constant <value_int: int = 0> ()
  one = Constant <value_int: int = 1> ()
  zeros = Constant <value_ints: ints = [0]> ()
  ones = Constant <value_ints: ints = [1]> ()
  outer = Constant <value_ints: ints = [1, 3]> ()
  head = Slice (position_ids, zeros, ones, ones)
  first = Max (head, zero)
  start = Squeeze (first, ones)
  seq = Shape <start: int = 1, end: int = 2> (position_ids)
  seq_len = Squeeze (seq)
  steps = Range (zero, seq_len, one)
  places = Add (first, steps)
  ctx_len = Shape <start: int = 2, end: int = 3> (cache)
  rows = Mod (places, ctx_len)
  rows4 = Unsqueeze (rows, outer)
  full = Shape (update)
  index = Expand (rows4, full)
  old = GatherElements <axis: int = 2> (cache, index)
  is_real = GreaterOrEqual (position_ids, zero)
  real4 = Unsqueeze (is_real, outer)
  values = Where (real4, update, old)
  written = TensorScatter <axis: int = 2, mode: string = "circular"> (cache, values, start)
}
"""

# Padding writes once more what a real token writes (the first token of some row that is not idle),
# so that it changes nothing even when an idle row names a slot that another row uses.
CACHE_WRITE_AT = """
CacheWriteAt (cache, update, position_ids, batch_index) => (written) {
  zero = Constant <value_int: int = 0> ()
  one = Constant <value_int: int = 1> ()
  zeros = Constant <value_ints: ints = [0]> ()
  ones = Constant <value_ints: ints = [1]> ()
  twos = Constant <value_ints: ints = [2]> ()
  outer = Constant <value_ints: ints = [1, 3]> ()
  around = Constant <value_ints: ints = [0, 2, 3]> ()
  is_real = GreaterOrEqual (position_ids, zero)
  head = Slice (position_ids, zeros, ones, ones)
  row = ArgMax <axis: int = 0, keepdims: int = 0> (head)
  row_position = Gather <axis: int = 0> (head, row)
  row_place = Max (row_position, zero)
  row_slot = Gather <axis: int = 0> (batch_index, row)
  places = Where (is_real, position_ids, row_place)
  slots = Where (is_real, batch_index, row_slot)
  places4 = Unsqueeze (places, outer)
  slots4 = Unsqueeze (slots, outer)
  batch = Shape <start: int = 0, end: int = 1> (update)
  heads = Shape <start: int = 1, end: int = 2> (update)
  seq = Shape <start: int = 2, end: int = 3> (update)
  size = Concat <axis: int = 0> (batch, heads, seq, ones)
  heads0 = Squeeze (heads)
  head_ids = Range (zero, heads0, one)
  heads4 = Unsqueeze (head_ids, around)
  slot_column = Expand (slots4, size)
  head_column = Expand (heads4, size)
  place_column = Expand (places4, size)
  index = Concat <axis: int = 3> (slot_column, head_column, place_column)
  row_size = Concat <axis: int = 0> (ones, heads, ones, ones)
  row_place4 = Unsqueeze (row_place, outer)
  row_slot4 = Unsqueeze (row_slot, outer)
  row_slot_column = Expand (row_slot4, row_size)
  row_head_column = Expand (heads4, row_size)
  row_place_column = Expand (row_place4, row_size)
  row_index = Concat <axis: int = 3> (row_slot_column, row_head_column, row_place_column)
  row_old = GatherND (cache, row_index)
  row_update = Gather <axis: int = 0> (update, row)
  row_new = Slice (row_update, zeros, ones, twos)
  row_real = GreaterOrEqual (row_position, zero)
  row_real4 = Unsqueeze (row_real, outer)
  stand_in = Where (row_real4, row_new, row_old)
  real4 = Unsqueeze (is_real, outer)
  values = Where (real4, update, stand_in)
  written = ScatterND (cache, index, values)
}
"""

_KEYS = """
  zero = Constant <value_int: int = 0> ()
  one = Constant <value_int: int = 1> ()
  outer = Constant <value_ints: ints = [1, 3]> ()
  known = Max (position_ids, zero)
  p = Unsqueeze (known, outer)
  ctx = Shape <start: int = 2, end: int = 3> (cache)
  ctx_len = Squeeze (ctx)
  j = Range (zero, ctx_len, one)
  is_past = LessOrEqual (j, p)
"""

WINDOW_MASK = f"""
WindowMask <window> (position_ids, cache) => (mask) {{
  {_KEYS}
  window = Constant <value_int: int = @window> ()
  edge = Sub (p, window)
  is_near = Greater (j, edge)
  mask = And (is_past, is_near)
}}
"""

CHUNK_MASK = f"""
ChunkMask <chunk> (position_ids, cache) => (mask) {{
  {_KEYS}
  chunk = Constant <value_int: int = @chunk> ()
  key_chunk = Div (j, chunk)
  query_chunk = Div (p, chunk)
  is_same = Equal (key_chunk, query_chunk)
  mask = And (is_past, is_same)
}}
"""

ALIBI_BIAS = f"""
AlibiBias (position_ids, cache, slopes) => (bias) {{
  {_KEYS}
  around = Constant <value_ints: ints = [0, 2, 3]> ()
  lowest = Constant <value_float: float = {LOWEST}> ()
  slopes4 = Unsqueeze (slopes, around)
  distance = Sub (j, p)
  distance_f = Cast <to: int = 1> (distance)
  slanted = Mul (slopes4, distance_f)
  bias = Where (is_past, slanted, lowest)
}}
"""

# One more logit s in the softmax scales the other probabilities by sigmoid(logsumexp - s).
SINK_ATTENTION = """
SinkAttention <scale, softcap, is_causal> (Q, K, V, attn_mask, nonpad_kv_seqlen, sinks) => (Y) {
  last = Constant <value_ints: ints = [-1]> ()
  by_head = Constant <value_ints: ints = [1, -1, 1, 1]> ()
  plain, key, value, scores = Attention <scale: float = @scale, softcap: float = @softcap,
    is_causal: int = @is_causal, qk_matmul_output_mode: int = 2>
    (Q, K, V, attn_mask, , , nonpad_kv_seqlen)
  total = ReduceLogSumExp <keepdims: int = 1> (scores, last)
  sinks4 = Reshape (sinks, by_head)
  lead = Sub (total, sinks4)
  share = Sigmoid (lead)
  Y = Mul (plain, share)
}
"""

_PLAIN = {
    "CacheWrite": CACHE_WRITE,
    "CacheWriteAt": CACHE_WRITE_AT,
    "WindowMask": WINDOW_MASK,
    "ChunkMask": CHUNK_MASK,
    "AlibiBias": ALIBI_BIAS,
    "SinkAttention": SINK_ATTENTION,
}

_ACTIVATIONS = {
    "silu": "act = Swish (g)",
    "gelu": "act = Gelu (g)",
    "gelu_tanh": 'act = Gelu <approximate: string = "tanh"> (g)',
    "relu": "act = Relu (g)",
    "relu2": "positive = Relu (g)\n  act = Mul (positive, positive)",
}

_GATES = {
    "none": "g = Identity (wide)",
    "half": "g, u = Split <axis: int = -1, num_outputs: int = 2> (wide)",
    "interleaved": """from_0 = Constant <value_ints: ints = [0]> ()
  from_1 = Constant <value_ints: ints = [1]> ()
  end = Constant <value_ints: ints = [9223372036854775807]> ()
  last = Constant <value_ints: ints = [-1]> ()
  stride = Constant <value_ints: ints = [2]> ()
  g = Slice (wide, from_0, end, last, stride)
  u = Slice (wide, from_1, end, last, stride)""",
}

_CLAMPED = """alpha = Constant <value_float: float = @alpha> ()
  high = Constant <value_float: float = @limit> ()
  low = Neg (high)
  plus = Constant <value_float: float = 1.0> ()
  g_cut = Min (g, high)
  u_cut = Clip (u, low, high)
  steep = Mul (g_cut, alpha)
  soft = Sigmoid (steep)
  act = Mul (g_cut, soft)
  u_more = Add (u_cut, plus)
  hidden = Mul (act, u_more)"""


def moe_text(op_type: str, gate: str, activation: str, transposed: bool) -> str:
    """The body of MoE or MoEBias for its attributes: every expert on every token, weighted."""
    if activation == "swiglu_clamped":
        act = _CLAMPED
    else:
        out = "hidden = Identity (act)" if gate == "none" else "hidden = Mul (act, u)"
        act = f"{_ACTIVATIONS[activation]}\n  {out}"
    turn = "Identity" if transposed else "Transpose <perm: ints = [0, 2, 1]>"
    extra = ", up_bias, down_bias" if op_type == "MoEBias" else ""
    names = "gate, activation, transposed" + (", alpha, limit" if act == _CLAMPED else "")
    if extra:
        add_up = "up_bias3 = Unsqueeze (up_bias, middle)\n  wide = Add (wide_0, up_bias3)"
        add_down = (
            "down_bias3 = Unsqueeze (down_bias, middle)\n  narrow = Add (narrow_0, down_bias3)"
        )
    else:
        add_up, add_down = "wide = Identity (wide_0)", "narrow = Identity (narrow_0)"
    return f"""
{op_type} <{names}> (x, index, weight, up, down{extra}) => (y) {{
  first = Constant <value_ints: ints = [0]> ()
  middle = Constant <value_ints: ints = [1]> ()
  third = Constant <value_ints: ints = [2]> ()
  tokens = Shape <start: int = 0, end: int = 1> (x)
  experts = Shape <start: int = 0, end: int = 1> (up)
  table = Concat <axis: int = 0> (tokens, experts)
  nothing = ConstantOfShape (table)
  shares = ScatterElements <axis: int = 1, reduction: string = "add"> (nothing, index, weight)
  shares_t = Transpose <perm: ints = [1, 0]> (shares)
  shares3 = Unsqueeze (shares_t, third)
  x3 = Unsqueeze (x, first)
  up_t = {turn} (up)
  wide_0 = MatMul (x3, up_t)
  {add_up}
  {_GATES[gate]}
  {act}
  down_t = {turn} (down)
  narrow_0 = MatMul (hidden, down_t)
  {add_down}
  weighted = Mul (narrow, shares3)
  y = ReduceSum <keepdims: int = 0> (weighted, first)
}}
"""


def functions_for(nodes: Iterable[ir.Node]) -> list[ir.Function]:
    """The functions that these nodes call; nodes that need another body get an overload name."""
    made: dict[tuple[str, str], ir.Function] = {}
    bodies: dict[str, list[str]] = {}
    for node in nodes:
        if node.domain != DOMAIN:
            continue
        text = _text(node)
        known = bodies.setdefault(node.op_type, [])
        if text not in known:
            known.append(text)
        place = known.index(text)
        node.overload = "" if place == 0 else str(place)
        key = (node.op_type, node.overload)
        if key not in made:
            made[key] = _parse(text, node.overload)
    return list(made.values())


def _text(node: ir.Node) -> str:
    if node.op_type in _PLAIN:
        return _PLAIN[node.op_type]
    attrs: dict[str, Any] = {name: attr.value for name, attr in node.attributes.items()}
    return moe_text(node.op_type, attrs["gate"], attrs["activation"], bool(attrs["transposed"]))


def _parse(text: str, overload: str) -> ir.Function:
    head = f'<ir_version: 11, opset_import: ["" : {OPSET}]>\n'
    shell = f'm (float[1] a) => (float[1] b) {{ b = Identity (a) }}\n<domain: "{DOMAIN}", '
    model = ir.from_onnx_text(f'{head}{shell}opset_import: ["" : {OPSET}]>{text}')
    (function,) = model.functions.values()
    function.overload = overload
    return function
