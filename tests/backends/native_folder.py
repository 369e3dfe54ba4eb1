"""Programs on the native engine without a compiler: a folder with the two files that it reads.

``write_folder`` packs the matrices of a program in the dtype that its values name; ``run_op`` runs
a single op, its inputs fed through tables that the tokens index.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from qeff._native import load
from qeff.backends.cpu.session import NativeSession
from qeff.compile.panels import pack_panels
from qeff.container.program import ABSENT, Op, Program, Value
from qeff.container.weights import WeightSpec, lay_out
from qeff.core.formats import format_of
from qeff.core.options import CompileOptions
from qeff.core.spec import CacheLayer
from qeff.ops import kinds, validate
from qeff.ops.base import NUMPY_DTYPES
from qeff.runtime.session import Batch, Span

_MATRICES = {"linear": (1,), "embed": (0,), "moe": (3, 4)}
_FLOAT_DTYPES = ("f32", "f16", "bf16")


def matrix_values(program: Program) -> set[int]:
    """The weights that lie in panels."""
    found = set()
    for op in program.ops:
        for place in _MATRICES.get(op.kind, ()):
            if program.values[op.inputs[place]].dtype not in ("i64", "i32", "bool"):
                found.add(op.inputs[place])
    return found


def write_folder(
    folder: Path, program: Program, weights: Mapping[str, np.ndarray], kv: str = "fp32"
) -> Path:
    """Write program.json and weights.safetensors; arrays of packed dtypes are panels already."""
    matrices = matrix_values(program)
    stored = {}
    for index, value in enumerate(program.values):
        if value.kind != "weight":
            continue
        array = weights[value.name]
        if index in matrices and array.dtype != np.uint8:
            array = pack_panels(np.asarray(array, np.float32), value.dtype)
        stored[value.name] = np.ascontiguousarray(array)
    specs = [WeightSpec(n, a.shape, format_of(a.dtype).name) for n, a in stored.items()]
    layout = lay_out(specs)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "weights.safetensors").open("wb") as file:
        file.write(layout.header)
        for entry in layout.entries:
            file.seek(entry.start)
            file.write(stored[entry.name].tobytes())
        file.truncate(layout.num_bytes)
    text = {**program.to_json(), "engine": {"layout": 2, "kv": kv}}
    (folder / "program.json").write_text(json.dumps(text))
    return folder


def open_folder(folder: Path, threads: int = 1, ctx_len: int = 4096) -> NativeSession:
    """A session on such a folder."""
    options = CompileOptions(ctx_len=ctx_len, prefill_seq_len=1)
    return NativeSession(load(), str(folder), threads, options)


def single_op(
    kind: str,
    inputs: Sequence[np.ndarray | None],
    weights: Sequence[bool],
    attrs: Mapping[str, object],
    num_tokens: int,
    output: int = 0,
) -> tuple[Program, dict[str, np.ndarray]]:
    """A program of one op whose output ``output`` becomes the logits, as floats.

    ``inputs`` hold one entry for each token, or the whole weight where ``weights`` says so.
    """
    values = [Value("tokens", "token", (), "i64"), Value("positions", "token", (), "i64")]
    ops: list[Op] = []
    tables: dict[str, np.ndarray] = {}

    def add(value: Value) -> int:
        values.append(value)
        return len(values) - 1

    names = {v: k for k, v in NUMPY_DTYPES.items()}
    ids = []
    for i, (array, is_weight) in enumerate(zip(inputs, weights, strict=True)):
        if array is None:
            ids.append(ABSENT)
            continue
        dtype = names[array.dtype]
        if is_weight:
            ids.append(add(Value(f"in{i}", "weight", array.shape, dtype)))
            tables[f"in{i}"] = array
            continue
        shape = array.shape[1:]
        flat = array.reshape(num_tokens, -1)
        table = add(Value(f"table{i}", "weight", flat.shape, dtype))
        tables[f"table{i}"] = flat
        row = add(Value(f"row{i}", "token", (flat.shape[1],), dtype))
        ops.append(Op("embed", f"row{i}", (table, 0), (row,), {"offset": 0, "dtype": dtype}))
        whole = add(Value(f"x{i}", "token", shape, dtype))
        ops.append(Op("reshape", f"x{i}", (row,), (whole,), {"shape": list(shape)}))
        ids.append(whole)
    spec = kinds()[kind]
    full = spec.complete(attrs)
    from qeff.ops import Arg

    args = [
        None if i == ABSENT else Arg(values[i].kind, values[i].shape, values[i].dtype) for i in ids
    ]
    made = [
        add(Value(f"y{j}", arg.kind, arg.shape, arg.dtype))
        for j, arg in enumerate(spec.outputs(args, full))
    ]
    ops.append(Op(kind, "tested", tuple(ids), tuple(made), full))
    result = values[made[output]]
    last = made[output]
    if result.dtype != "f32":
        last = add(Value("float", result.kind, result.shape, "f32"))
        ops.append(Op("cast", "float", (made[output],), (last,), {"to": "f32"}))
    size = math.prod(result.shape)
    flat_id = add(Value("flat", result.kind, (size,), "f32"))
    ops.append(Op("reshape", "flat", (last,), (flat_id,), {"shape": [size]}))
    logits = flat_id
    if result.kind == "token":
        logits = add(Value("logits", "row", (size,), "f32"))
        ops.append(Op("gather_rows", "logits", (flat_id,), (logits,), {}))
    caches: tuple[CacheLayer, ...] = ()
    program = Program(tuple(values), tuple(ops), caches, 0, 1, logits)
    validate(program)
    return program, tables


def run_op(
    folder: Path,
    kind: str,
    inputs: Sequence[np.ndarray | None],
    weights: Sequence[bool],
    attrs: Mapping[str, object],
    output: int = 0,
) -> np.ndarray:
    """What the native engine makes of one op, [tokens, elements] as floats."""
    counts = [len(a) for a, w in zip(inputs, weights, strict=True) if a is not None and not w]
    num_tokens = counts[0]
    program, tables = single_op(kind, inputs, weights, attrs, num_tokens, output)
    session = open_folder(write_folder(folder, program, tables))
    try:
        session.reserve(-(-num_tokens // 32))
        return session.step(one_span(num_tokens)).logits
    finally:
        session.close()


def one_span(num_tokens: int) -> Batch:
    """Tokens 0, 1, 2, … of one sequence, all rows wanted."""
    index = np.arange(num_tokens)
    blocks = tuple(range(-(-num_tokens // 32)))
    return Batch(index, index, (Span(0, num_tokens, blocks),), index)
