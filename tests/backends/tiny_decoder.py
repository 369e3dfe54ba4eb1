"""A small decoder written directly as a program: embed, two layers with attention and MLP, head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from native_folder import write_folder

from qeff.compile.panels import pack_panels
from qeff.container.program import Op, Program, Value
from qeff.core.formats import FORMATS
from qeff.core.spec import CacheLayer
from qeff.ops import validate

LAYERS = 2
VOCAB, WIDTH, MIDDLE = 96, 256, 256
HEADS, KV_HEADS, DIM = 8, 2, 32
# Where a block has its scales, and how large they are for values of about 1/16.
_SCALES = {
    "q4_1": ((0, 1e-2), (2, -7e-2)),
    "q4_k": ((0, 4e-4), (2, 2e-3)),
    "q6_k": ((208, 4e-5),),
}


class _Draft:
    def __init__(self, form: str) -> None:
        self.form = form
        self.values = [Value("tokens", "token", (), "i64"), Value("positions", "token", (), "i64")]
        self.ops: list[Op] = []
        self.weights: dict[str, np.ndarray] = {}
        self.draws = np.random.default_rng(11)

    def add(self, kind: str, inputs: list[int], size: tuple[int, ...], **attrs: object) -> int:
        of = "row" if kind == "gather_rows" or self.values[inputs[0]].kind == "row" else "token"
        name = f"{kind}{len(self.ops)}"
        self.values.append(Value(name, of, size, "f32"))
        self.ops.append(Op(kind, name, tuple(inputs), (len(self.values) - 1,), attrs))
        return len(self.values) - 1

    def weight(self, name: str, shape: tuple[int, ...], is_matrix: bool = True) -> int:
        scale = shape[-1] ** -0.5 if is_matrix else 1.0
        array = (self.draws.standard_normal(shape) * scale).astype(np.float32)
        self.values.append(Value(name, "weight", shape, self.form if is_matrix else "f32"))
        self.weights[name] = random_panels(array, self.form) if is_matrix else array
        return len(self.values) - 1

    def linear(self, name: str, x: int, size: int) -> int:
        weight = self.weight(name, (size, self.values[x].shape[-1]))
        return self.add("linear", [x, weight], (size,), transposed=False)

    def norm(self, name: str, x: int) -> int:
        weight = self.weight(name, (WIDTH,), is_matrix=False)
        return self.add("norm", [x, weight], (WIDTH,), function="rms", eps=1e-5)

    def sum(self, a: int, b: int) -> int:
        return self.add("binary", [a, b], self.values[a].shape, function="add")


def random_panels(array: np.ndarray, form: str) -> np.ndarray:
    """Panels of a format; those that only checkpoints have are drawn code by code."""
    if form not in _SCALES:
        return pack_panels(array, form)
    block = FORMATS[form]
    draws = np.random.default_rng(array.size)
    num_blocks = array.shape[1] // block.block_len
    packed = draws.integers(0, 256, (len(array), num_blocks, block.block_bytes), np.uint8)
    for place, size in _SCALES[form]:
        scale = np.float16(size) * draws.uniform(0.5, 1, packed.shape[:2]).astype(np.float16)
        packed[..., place : place + 2] = scale[..., None].view(np.uint8)
    return pack_panels(packed.reshape(len(array), -1), form, packing=form)


def write_decoder(folder: Path, form: str, kv: str, *, by_row: bool = False) -> Path:
    """The decoder with its matrices in one format, as a folder of the native engine.

    With ``by_row`` the last layer runs on rows but for its keys and values.
    """
    draft = _Draft(form)
    table = draft.weight("embed", (VOCAB, WIDTH))
    draft.values.append(Value("x", "token", (WIDTH,), "f32"))
    x = len(draft.values) - 1
    draft.ops.append(Op("embed", "embed", (table, 0), (x,), {"offset": 0, "dtype": "f32"}))
    caches = []
    for layer in range(LAYERS):
        name = f"layer{layer}."
        y = draft.norm(name + "norm1", x)
        heads = []
        is_for_rows = by_row and layer == LAYERS - 1
        asked = draft.add("gather_rows", [y], (WIDTH,)) if is_for_rows else y
        x = draft.add("gather_rows", [x], (WIDTH,)) if is_for_rows else x
        for part, count in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            flat = draft.linear(name + part, asked if part == "q" else y, count * DIM)
            heads.append(draft.add("reshape", [flat], (count, DIM), shape=[count, DIM]))
        attended = draft.add(
            "attention",
            heads,
            (HEADS, DIM),
            cache=layer,
            value_dim=DIM,
            scale=DIM**-0.5,
            softcap=0.0 if layer else 8.0,
            window=17 if layer else 0,
            chunk=0,
            by_row=is_for_rows,
        )
        caches.append(CacheLayer(layer, KV_HEADS, DIM, DIM))
        flat = draft.add("reshape", [attended], (HEADS * DIM,), shape=[HEADS * DIM])
        x = draft.sum(x, draft.linear(name + "o", flat, WIDTH))
        y = draft.norm(name + "norm2", x)
        gate = draft.linear(name + "gate", y, MIDDLE)
        up = draft.linear(name + "up", y, MIDDLE)
        gated = draft.add("gated", [gate, up], (MIDDLE,), activation="silu")
        x = draft.sum(x, draft.linear(name + "down", gated, WIDTH))
    rows = x if by_row else draft.add("gather_rows", [x], (WIDTH,))
    logits = draft.linear("head", draft.norm("last", rows), VOCAB)
    program = Program(
        tuple(draft.values), tuple(draft.ops), tuple(caches), tokens=0, positions=1, logits=logits
    )
    validate(program)
    return write_folder(folder, program, draft.weights, kv)
