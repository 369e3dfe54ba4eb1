"""Small programs as containers of the CUDA engine, in memory, and the reference session for each.

A program has two layers of the usual kind: rotary positions computed from position ids, grouped
heads, a gate, and a last layer on the rows asked for. Matrices may be in any format; the reference
sees the same numbers in float32.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from qeff.backends.cuda import layout
from qeff.backends.reference.session import ReferenceSession
from qeff.compile.panels.encoding import code_rows
from qeff.compile.quantize.row_scale import restore_fp8
from qeff.container.program import ROW_SCALED_DTYPES, Op, Program, Value
from qeff.core.options import CompileOptions
from qeff.core.spec import CacheLayer
from qeff.ops import validate
from qeff.ops.interpreter import Interpreter
from qeff.runtime.session import Capabilities

VOCAB, WIDTH, MIDDLE = 96, 64, 96
HEADS, KV_HEADS, DIM = 4, 2, 16
CTX = 128
PLAIN = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a program has besides the usual."""

    form: str = "f32"
    value_form: str | None = None  # of the matrices that make attention's values
    compute: str = "f32"
    kv: str = "f32"
    layers: int = 2
    head_norms: bool = False
    biases: bool = False
    is_tied: bool = False
    window: int = 0
    softcap: float = 0.0
    norm: str = "rms"
    activation: str = "silu"
    guessing: int = 0  # heads whose logits follow the model's
    experts: int = 0  # in place of a layer's gate, up and down; a token has two of them
    shared_expert: bool = False  # that every token has besides


class Draft:
    """A program under construction, and its weights in float32."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.values = [Value("tokens", "token", (), "i64"), Value("positions", "token", (), "i64")]
        self.ops: list[Op] = []
        self.weights: dict[str, np.ndarray] = {}
        self._draws = np.random.default_rng(5)

    def add(self, kind: str, inputs: list[int], size: tuple[int, ...], **attrs: object) -> int:
        of = "row" if kind == "gather_rows" else "token"
        for index in inputs[:1] if kind == "attention" else inputs:
            if index >= 0 and self.values[index].kind == "row":
                of = "row"
        self.values.append(Value(f"{kind}{len(self.ops)}", of, size, "f32"))
        self.ops.append(
            Op(kind, f"{kind}{len(self.ops)}", tuple(inputs), (len(self.values) - 1,), attrs)
        )
        return len(self.values) - 1

    def weight(self, shape: tuple[int, ...], form: str | None = None) -> int:
        name = f"w{len(self.weights)}"
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.3
        array = (self._draws.standard_normal(shape) * scale).astype(np.float32)
        self.weights[name] = array if len(shape) > 1 else array + np.float32(1)
        self.values.append(
            Value(name, "weight", shape, form or self.kind.form if len(shape) > 1 else "f32")
        )
        return len(self.values) - 1

    def constant(self, array: np.ndarray) -> int:
        name = f"c{len(self.weights)}"
        self.weights[name] = array
        self.values.append(Value(name, "weight", array.shape, "f32"))
        return len(self.values) - 1

    def linear(self, x: int, size: int, weight: int | None = None, form: str | None = None) -> int:
        weight = self.weight((size, self.values[x].shape[-1]), form) if weight is None else weight
        inputs = [x, weight]
        if self.kind.biases:
            inputs.append(self.weight((size,)))
        return self.add("linear", inputs, (size,), transposed=False)

    def normed(self, x: int, size: int) -> int:
        inputs = [x, self.weight((size,))]
        if self.kind.norm == "layer":
            inputs.append(self.weight((size,)))
        shape = self.values[x].shape
        return self.add("norm", inputs, shape, function=self.kind.norm, eps=1e-5)

    def total(self, a: int, b: int) -> int:
        return self.add("binary", [a, b], self.values[a].shape, function="add")

    def rows(self, x: int) -> int:
        return self.add("gather_rows", [x], self.values[x].shape)


def angles(draft: Draft) -> tuple[int, int]:
    """Cosines and sines of each token's position."""
    place = draft.add("reshape", [1], (1,), shape=[1])
    draft.values[place] = replace(draft.values[place], dtype="i64")
    place = draft.add("cast", [place], (1,), to="f32")
    half = DIM // 2
    steps = draft.constant((100.0 ** (-np.arange(half) / half)).astype(np.float32))
    turns = draft.add("binary", [place, steps], (half,), function="mul")
    return tuple(draft.add("unary", [turns], (half,), function=name) for name in ("cos", "sin"))


def attention(draft: Draft, layer: int, x: int, y: int, turns: tuple[int, int]) -> tuple[int, int]:
    """Heads and attention; the last layer has queries for rows alone. Also the stream behind it."""
    kind, is_last = draft.kind, layer == draft.kind.layers - 1
    asked, own = (draft.rows(y), tuple(map(draft.rows, turns))) if is_last else (y, turns)
    parts = []
    for source, heads, table in ((asked, HEADS, own), (y, KV_HEADS, turns), (y, KV_HEADS, None)):
        flat = draft.linear(source, heads * DIM, form=None if table else kind.value_form)
        part = draft.add("reshape", [flat], (heads, DIM), shape=[heads, DIM])
        if table is not None:
            if kind.head_norms:
                part = draft.add(
                    "norm", [part, draft.weight((DIM,))], (heads, DIM), function="rms", eps=1e-6
                )
            part = draft.add("rope", [part, *table], (heads, DIM), interleaved=False)
        parts.append(part)
    made = draft.add(
        "attention", parts, (HEADS, DIM), cache=layer, value_dim=DIM, scale=DIM**-0.5,
        softcap=kind.softcap, window=kind.window, chunk=0, by_row=is_last,
    )  # fmt: skip
    flat = draft.add("reshape", [made], (HEADS * DIM,), shape=[HEADS * DIM])
    return flat, draft.rows(x) if is_last else x


def gated(draft: Draft, y: int) -> int:
    """Gate, up and down."""
    gate, up = draft.linear(y, MIDDLE), draft.linear(y, MIDDLE)
    both = draft.add("gated", [gate, up], (MIDDLE,), activation=draft.kind.activation)
    return draft.linear(both, WIDTH)


def experts(draft: Draft, y: int) -> int:
    """The two best of some experts, with their part of the shares that a router gives."""
    num = draft.kind.experts
    shares = draft.add("softmax", [draft.linear(y, num)], (num,), axis=0)
    best, index = chosen(draft, shares)
    total = draft.add("reduce", [best], (1,), function="sum", axes=(0,), keepdims=True)
    weight = draft.add("binary", [best, total], (2,), function="div")
    up, down = draft.weight((num, 2 * MIDDLE, WIDTH)), draft.weight((num, WIDTH, MIDDLE))
    inputs = [y, index, weight, up, down]
    return draft.add("moe", inputs, (WIDTH,), activation=draft.kind.activation)


def chosen(draft: Draft, scores: int) -> tuple[int, int]:
    """The two best scores, and which they are."""
    best = draft.add("topk", [scores], (2,), k=2, axis=0, largest=True)
    draft.values.append(Value(f"index{best}", draft.values[best].kind, (2,), "i64"))
    draft.ops[-1] = replace(draft.ops[-1], outputs=(best, best + 1))
    return best, best + 1


def make_program(kind: Kind) -> tuple[Program, dict[str, np.ndarray]]:
    """The program and its weights in float32."""
    draft = Draft(kind)
    table = draft.weight((VOCAB, WIDTH))
    x = draft.add("embed", [table, 0], (WIDTH,), offset=0, dtype="f32")
    turns = angles(draft)
    for layer in range(kind.layers):
        flat, x = attention(draft, layer, x, draft.normed(x, WIDTH), turns)
        x = draft.total(x, draft.linear(flat, WIDTH))
        y = draft.normed(x, WIDTH)
        if not kind.experts:
            x = draft.total(gated(draft, y), x)
        elif kind.shared_expert:
            x = draft.total(draft.total(experts(draft, y), gated(draft, y)), x)
        else:
            x = draft.total(experts(draft, y), x)
    size = VOCAB * (1 + kind.guessing)
    logits = draft.linear(draft.normed(x, WIDTH), size, table if kind.is_tied else None)
    caches = tuple(CacheLayer(i, KV_HEADS, DIM, DIM) for i in range(kind.layers))
    program = Program(tuple(draft.values), tuple(draft.ops), caches, 0, 1, logits)
    validate(program)
    return program, draft.weights


class MemoryContainer:
    """As much of a container as a session asks for, its weights in one file."""

    def __init__(self, kind: Kind, folder: Path, max_batch: int = 4) -> None:
        self.program, self.floats = make_program(kind)
        engine = {"layout": 1, "compute": kind.compute, "kv": kind.kv, "drawn": []}
        self._text = json.dumps(self.program.to_json() | {"engine": engine}).encode()
        self._path = folder / "weights"
        self._arrays: dict[str, np.ndarray] = {}
        for value in self.program.weights():
            self._store(value.name, value.dtype)
        self._places: dict[str, tuple[int, int]] = {}
        with self._path.open("wb") as file:
            for name, array in self._arrays.items():
                start = file.tell()
                file.write(array.tobytes())
                self._places[name] = start, file.tell()
        options = CompileOptions(target="cuda", ctx_len=CTX, full_batch_size=max_batch)
        model = SimpleNamespace(vocab_size=VOCAB)
        self.manifest = SimpleNamespace(options=options, model=model, target="cuda")

    def _store(self, name: str, form: str) -> None:
        """A weight as it lies in the file; what it stands for replaces the float one."""
        values = self.floats[name]
        if form in PLAIN:
            self._arrays[name] = values.astype(PLAIN[form])
            self.floats[name] = self._arrays[name].astype(np.float32)
            return
        shape, values = values.shape, values.reshape(-1, values.shape[-1])  # a stack is one too
        coded, _ = code_rows(values, form)
        (scales,) = coded.inner
        if form in ROW_SCALED_DTYPES:
            stored, restored = coded.codes, restore_fp8(coded.codes, scales)
        else:
            stored, scales = layout.pack_rows(form, coded.codes, scales)
            restored = layout.unpack_rows(form, stored, scales, values.shape[1])
        self._arrays[name], self._arrays[name + ".scales"] = stored, scales
        self.floats[name] = restored.reshape(shape)

    def file(self, name: str) -> Path:
        return self._path.parent / name

    def read_bytes(self, name: str) -> bytes:
        assert name == "program.json"
        return self._text

    def weight(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def weight_place(self, name: str) -> tuple[Path, int, int]:
        return self._path, *self._places[name]

    def reference(self) -> ReferenceSession:
        """The same program in float32, in blocks as long as the engine's."""
        values = tuple(
            replace(v, dtype="f32") if v.kind == "weight" else v for v in self.program.values
        )
        program = replace(self.program, values=values)
        caps = Capabilities(VOCAB, CTX, 64, 4, CTX, supports_trees=True)
        return ReferenceSession(Interpreter(program, self.floats), caps)
