"""Attention kernels of the CUDA engine, in Triton's interpreter, against the op's reference."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest
from allpairspy import AllPairs

from qeff.ops import attention as attention_op
from qeff.ops import norm as norm_op
from qeff.ops import rope as rope_op
from qeff.ops.base import Step

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
triton = pytest.importorskip("triton", reason="triton is not installed")

from qeff.backends.cuda.session import attention  # noqa: E402
from qeff.backends.cuda.session.attention import AttentionSpec, Rope, Work, attend  # noqa: E402
from qeff.backends.cuda.session.attention_launch import (  # noqa: E402
    Call,
    FewPlan,
    ManyPlan,
    launch_few,
)
from qeff.backends.cuda.session.attention_spec import num_splits  # noqa: E402
from qeff.backends.cuda.session.cache import LayerCache, settled  # noqa: E402
from qeff.backends.cuda.session.kernels.attend_few import FUSED  # noqa: E402
from qeff.backends.cuda.session.step_info import StepInfo  # noqa: E402

pytestmark = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="needs Triton's interpreter (TRITON_INTERPRET=1)"
)

CTX = 256
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

# (rows that are there already, tokens) of each span
STEPS = {
    "decode": ((0, 1), (129, 1)),
    "few": ((137, 2), (15, 1)),
    "mixed": ((70, 1), (21, 9)),
    "long": ((75, 9),),
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles for a span of few tokens: the interpreter is slow."""
    monkeypatch.setattr(attention, "FEW_TOKENS", 4)
    monkeypatch.setattr(attention, "many_plan", lambda call: ManyPlan(16, 32, 4, 2))


@dataclass(frozen=True)
class Case:
    """A step of one layer; the fields are the ways in which layers and steps differ."""

    step: str = "few"
    dtype: str = "f32"
    format: str = "f32"
    heads: tuple[int, int] = (2, 1)
    dims: tuple[int, int] = (32, 32)
    block_len: int = 16
    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    rope: str = "halves"  # none, halves, interleaved, partial
    gains: bool = False
    sinks: bool = False
    slopes: bool = False
    by_row: str = "no"  # no, some, all
    tree: bool = False
    shared: bool = False  # without k and v
    deterministic: bool = False


def encode(rows: np.ndarray, format: str) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Codes, scales and values of float rows [..., dim] in a format of the cache."""
    if format == "mxint8":
        *outer, dim = rows.shape
        padded = np.zeros((*outer, -(-dim // 32) * 32))
        padded[..., :dim] = rows
        parts = padded.reshape(*outer, -1, 32)
        largest = np.abs(parts).max(-1)
        exponent = np.maximum(np.frexp(largest)[1] - 1, -127)
        exponent[largest == 0] = -127
        unit = np.exp2(exponent - 6.0)[..., None]
        codes = np.clip(np.rint(parts / unit), -127, 127)
        flat = codes.reshape(padded.shape)[..., :dim]
        values = (codes * unit).reshape(padded.shape)[..., :dim]
        return flat.astype(np.int8), (exponent + 127).astype(np.uint8), values.astype(np.float32)
    x = torch.from_numpy(rows.astype(np.float32))
    if format == "fp8":
        x = x.clamp(-448, 448).to(torch.float8_e4m3fn)
        return x.view(torch.uint8).numpy(), None, x.float().numpy()
    x = x.to(DTYPES[format])
    return x.view(torch.uint8).numpy(), None, x.float().numpy()


class Setting:
    """A random layer and step with what both engines need of it."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        self.rng = np.random.default_rng(seed)
        self.spans = STEPS[case.step]
        self.num_tokens = sum(n for _, n in self.spans)
        self._make_step()
        self._make_cache()
        self._make_layer()

    def normal(self, *shape: int) -> np.ndarray:
        x = self.rng.normal(size=shape).astype(np.float32)
        return torch.from_numpy(x).to(DTYPES[self.case.dtype]).float().numpy()

    def _make_step(self) -> None:
        rng, case = self.rng, self.case
        size = case.block_len
        ends = [first + n for first, n in self.spans]
        counts = [-(-end // size) for end in ends]
        self.num_blocks = sum(counts) + 2
        free = rng.permutation(self.num_blocks)[: sum(counts)]
        self.tables = tuple(np.split(free, np.cumsum(counts)[:-1]))
        self.owners = np.repeat(np.arange(len(self.spans)), [n for _, n in self.spans])
        self.slots = np.concatenate([np.arange(f, f + n) for f, n in self.spans])
        self.positions = self.slots.copy()
        self.parents = np.full(self.num_tokens, -1) if case.tree else None
        self.starts = np.cumsum([0, *(n for _, n in self.spans)])
        if self.parents is not None:
            for s, (first, n) in enumerate(self.spans):
                start = self.starts[s]
                for i in range(n):
                    parent = int(rng.integers(-1, i)) if i else -1
                    self.parents[start + i] = start + parent if parent >= 0 else -1
                    at = self.positions[start + parent] + 1 if parent >= 0 else first
                    self.positions[start + i] = at
        rows = np.arange(self.num_tokens)
        if case.by_row == "some":
            rows = rng.permutation(self.num_tokens)[: max(1, self.num_tokens // 2)]
        self.rows = rows

    def _make_cache(self) -> None:
        case = self.case
        num_kv = case.heads[1]
        self.cache = LayerCache(case.format, num_kv, *case.dims, block_len=case.block_len)
        self.cache.allocate(self.num_blocks, "cpu")
        held = []
        for name, dim in zip(("key", "value"), case.dims, strict=True):
            rows = self.rng.normal(size=(self.num_blocks, num_kv, case.block_len, dim))
            codes, scales, values = encode(rows, case.format)
            memory = getattr(self.cache, f"{name}s")
            memory.view(torch.uint8).copy_(torch.from_numpy(codes.view(np.uint8)))
            if scales is not None:
                getattr(self.cache, f"{name}_scales").copy_(torch.from_numpy(scales))
            held.append(np.ascontiguousarray(values.transpose(0, 2, 1, 3)))
        self.held = tuple(held)

    def _make_layer(self) -> None:
        case = self.case
        key_dim, value_dim = case.dims
        half = {"none": 0, "partial": key_dim // 4}.get(case.rope, key_dim // 2)
        angle = self.rng.uniform(-3, 3, size=(CTX, half)).astype(np.float32)
        self.cos, self.sin = np.cos(angle), np.sin(angle)
        self.q_gain, self.k_gain = self.normal(key_dim), self.normal(key_dim)
        self.sinks = self.rng.normal(size=case.heads[0]).astype(np.float32)
        self.slopes = self.rng.uniform(0, 0.1, size=case.heads[0]).astype(np.float32)
        num_queries = len(self.rows) if case.by_row != "no" else self.num_tokens
        self.q = self.normal(num_queries, case.heads[0], key_dim)
        self.k = self.normal(self.num_tokens, case.heads[1], key_dim)
        self.v = self.normal(self.num_tokens, case.heads[1], value_dim)

    def turned(self, x: np.ndarray, gain: np.ndarray, positions: np.ndarray) -> np.ndarray:
        step = self.step()
        if self.case.gains:
            attrs = norm_op.OP.complete({"function": "rms", "eps": 1e-5})
            x = norm_op.OP.reference([x, gain, None], attrs, step)[0]
        if self.case.rope != "none":
            attrs = rope_op.OP.complete({"interleaved": self.case.rope == "interleaved"})
            x = rope_op.OP.reference([x, self.cos[positions], self.sin[positions]], attrs, step)[0]
        return x

    def step(self) -> Step:
        return Step(
            positions=self.positions,
            owners=self.owners,
            slots=self.slots,
            rows=self.rows,
            tables=self.tables,
            caches=(self.held,),
            parents=self.parents,
        )

    def expected(self) -> np.ndarray:
        """The reference's result; ``held`` then holds the rows that the step writes."""
        case = self.case
        asking = self.positions[self.rows] if case.by_row != "no" else self.positions
        q = self.turned(self.q, self.q_gain, asking)
        k = v = None
        if not case.shared:
            k = encode(self.turned(self.k, self.k_gain, self.positions), case.format)[2]
            v = encode(self.v, case.format)[2]
        attrs = attention_op.OP.complete(
            {
                "cache": 0,
                "value_dim": case.dims[1],
                "scale": 0.25,
                "softcap": case.softcap,
                "window": case.window,
                "chunk": case.chunk,
                "by_row": case.by_row != "no",
            }
        )
        sinks = self.sinks if case.sinks else None
        slopes = self.slopes if case.slopes else None
        return attention_op.OP.reference([q, k, v, sinks, slopes], attrs, self.step())[0]

    def info(self) -> StepInfo:
        width = max(len(table) for table in self.tables)
        tables = np.full((len(self.tables), width), self.num_blocks - 1)
        for row, table in zip(tables, self.tables, strict=True):
            row[: len(table)] = table
        ancestors = None
        if self.parents is not None:
            ancestors = np.zeros((self.num_tokens, 2), np.int64)
            for token in range(self.num_tokens):
                at = token
                while at >= 0:
                    i = int(at - self.starts[self.owners[token]])
                    ancestors[token].view(np.uint64)[i // 64] |= np.uint64(1 << (i % 64))
                    at = int(self.parents[at])
            ancestors = torch.from_numpy(ancestors)

        def i32(x: object) -> torch.Tensor:
            return torch.tensor(np.asarray(x), dtype=torch.int32)

        return StepInfo(
            num_tokens=self.num_tokens,
            num_spans=len(self.spans),
            num_rows=len(self.rows),
            tokens=torch.zeros(self.num_tokens, dtype=torch.int64),
            positions=i32(self.positions),
            owners=i32(self.owners),
            slots=i32(self.slots),
            starts=i32(self.starts),
            firsts=i32([first for first, _ in self.spans]),
            tables=i32(tables),
            rows=torch.from_numpy(self.rows),
            ancestors=ancestors,
            longest=max(first + n for first, n in self.spans),
            is_decode=all(n == 1 for _, n in self.spans),
        )

    def spec(self) -> AttentionSpec:
        case = self.case
        rope = None
        if case.rope != "none":
            tables = torch.from_numpy(self.cos), torch.from_numpy(self.sin)
            rope = Rope(*tables, interleaved=case.rope == "interleaved")
        return AttentionSpec(
            scale=0.25,
            num_heads=case.heads[0],
            num_kv_heads=case.heads[1],
            key_dim=case.dims[0],
            value_dim=case.dims[1],
            softcap=case.softcap,
            window=case.window,
            chunk=case.chunk,
            by_row=case.by_row != "no",
            rope=rope,
            q_gain=torch.from_numpy(self.q_gain) if case.gains else None,
            k_gain=torch.from_numpy(self.k_gain) if case.gains else None,
            eps=1e-5,
            sinks=torch.from_numpy(self.sinks) if case.sinks else None,
            slopes=torch.from_numpy(self.slopes) if case.slopes else None,
        )

    def views(self) -> list[torch.Tensor | None]:
        """q, k and v as views into one product, as far as they have the same rows."""
        dtype = DTYPES[self.case.dtype]
        parts = [torch.from_numpy(x).to(dtype) for x in (self.q, self.k, self.v)]
        if self.case.by_row != "no":
            return [parts[0], *self._merged(parts[1:])]
        return self._merged(parts)

    @staticmethod
    def _merged(parts: list[torch.Tensor]) -> list[torch.Tensor | None]:
        merged = torch.cat([part.flatten(1) for part in parts], 1)
        pieces = merged.split([part[0].numel() for part in parts], 1)
        return [p.unflatten(1, part.shape[1:]) for p, part in zip(pieces, parts, strict=True)]

    def run(self) -> np.ndarray:
        case, spec = self.case, self.spec()
        q, k, v = self.views()
        assert q is not None
        if case.shared:
            k = v = None
        dtype = DTYPES[case.dtype]
        work = Work.make([spec], self.num_tokens, dtype, "cpu")
        out = torch.full((len(q), case.heads[0], case.dims[1]), float("nan"), dtype=dtype)
        info = self.info()
        attend(spec, (q, k, v), self.cache, info, out, work, deterministic=case.deterministic)
        assert not work.counters.any(), "the counters are zero again"
        return out.float().numpy()

    def held_by_cache(self) -> list[np.ndarray]:
        """Keys and values of the cache as floats [blocks, block_len, heads, dim]."""
        found = []
        for name in ("key", "value"):
            rows = getattr(self.cache, f"{name}s").float().numpy()
            if self.case.format == "mxint8":
                scales = getattr(self.cache, f"{name}_scales").numpy().astype(np.float64)
                rows = rows * np.exp2(np.repeat(scales, 32, -1)[..., : rows.shape[-1]] - 133)
            found.append(rows.transpose(0, 2, 1, 3))
        return found


def check(case: Case, seed: int = 0) -> None:
    setting = Setting(case, seed)
    expected = setting.expected()
    got = setting.run()
    exact = case.dtype == "f32"
    tolerance = 1e-4 if exact else 3e-2
    if case.format in ("fp8", "mxint8"):
        tolerance = max(tolerance, 3e-3)  # a rounding may fall to the other side
    error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert error < tolerance, f"{error} {case}"
    coarse = {"fp8": 0.07, "mxint8": 0.02}.get(case.format, 1e-5 if exact else 0.02)
    for held, reference in zip(setting.held_by_cache(), setting.held, strict=True):
        np.testing.assert_allclose(held, reference, rtol=coarse, atol=coarse)
        assert np.mean(held != reference) < (0.01 if exact and case.format != "f32" else 1.1)


@pytest.mark.parametrize(
    ("step", "format"),
    [("decode", "f32"), ("decode", "fp8"), ("mixed", "fp8"), ("decode", "mxint8")],
)
def test_formats(step: str, format: str) -> None:
    check(Case(step=step, format=format, gains=True))


@pytest.mark.parametrize(("step", "dtype"), [("decode", "bf16"), ("mixed", "f16")])
def test_half_precision(step: str, dtype: str) -> None:
    check(Case(step=step, dtype=dtype, format=dtype))


FEATURES = {
    "step": list(STEPS),
    "heads": [(3, 1), (4, 2), (1, 1)],
    "dims": [(32, 32), (40, 24), (16, 64)],
    "block_len": [64, 16],
    "bound": ["none", "window", "chunk", "wide"],
    "softcap": [0.0, 3.0],
    "rope": ["halves", "interleaved", "partial", "none"],
    "gains": [False, True],
    "sinks": [False, True],
    "slopes": [False, True],
    "by_row": ["no", "some", "all"],
    "tree": [False, True],
    "shared": [False, True],
    "deterministic": [False, True],
    "format": ["f32", "fp8", "mxint8"],
}
BOUNDS = {"none": (0, 0), "window": (9, 0), "chunk": (0, 48), "wide": (100, 0)}
PAIRS = list(AllPairs(list(FEATURES.values())))


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_pairs_of_features(number: int) -> None:
    chosen = dict(zip(FEATURES, PAIRS[number], strict=True))
    window, chunk = BOUNDS[str(chosen.pop("bound"))]
    check(Case(window=window, chunk=chunk, **chosen), seed=number)  # type: ignore[arg-type]


def test_a_large_group_is_shared_by_programs() -> None:
    check(Case(step="few", heads=(72, 1), dims=(16, 16)))


def test_splits_see_lengths_of_the_replay() -> None:
    """A launch made for long sequences is right for short ones: splits without rows end."""
    case = Case(step="decode")
    setting = Setting(case)
    expected = setting.expected()
    info = replace(setting.info(), longest=CTX * 2)
    spec, (q, k, v) = setting.spec(), setting.views()
    work = Work.make([spec], setting.num_tokens, torch.float32, "cpu")
    out = torch.empty(len(q), case.heads[0], case.dims[1])
    for _ in range(2):  # the counters of the first serve the second
        attend(spec, (q, k, v), setting.cache, info, out, work, deterministic=False)
        assert np.linalg.norm(out.numpy() - expected) < 1e-4 * np.linalg.norm(expected)


@pytest.mark.parametrize("early", [True, False])
def test_many_parts_or_tiles(early: bool) -> None:
    """More parts than are put together at once, or parts of several tiles."""
    setting = Setting(Case(step="decode", heads=(4, 1)))
    expected = setting.expected()
    spec, (q, k, v), info = setting.spec(), setting.views(), setting.info()
    work = Work.make([spec], setting.num_tokens, torch.float32, "cpu")
    out = torch.empty(len(q), 4, 32)
    call = Call(spec, q, k, v, setting.cache, info, out, work)
    launch_few(call, FUSED, FewPlan(16, 4, 2, 16 if early else 4, early=early))
    assert np.linalg.norm(out.numpy() - expected) < 1e-4 * np.linalg.norm(expected)


def test_deterministic_result_does_not_depend_on_the_step() -> None:
    """The same token alone, and at the end of a longer span, bit for bit."""
    whole = Setting(Case(step="long", deterministic=True, window=50))
    all_rows = whole.run()
    alone = Setting(Case(step="long", deterministic=True, window=50))
    alone.cache = whole.cache
    first, n = alone.spans[0]
    alone.spans = ((first + n - 1, 1),)
    for name in ("q", "k", "v", "slots", "positions", "owners"):
        setattr(alone, name, getattr(alone, name)[-1:])
    alone.num_tokens, alone.starts, alone.rows = 1, np.array([0, 1]), np.array([0])
    np.testing.assert_array_equal(alone.run()[0], all_rows[-1])


def test_copies_of_blocks_and_rows() -> None:
    cache = LayerCache("mxint8", 2, 40, 24, block_len=4)
    cache.allocate(5, "cpu")
    for memory in (cache.keys, cache.values, cache.key_scales, cache.value_scales):
        memory.copy_(torch.randint(0, 100, memory.shape))
    before = [memory.clone() for memory in (cache.keys, cache.value_scales)]
    sources, targets = settled([(0, 1), (1, 2), (3, 1)])
    cache.copy_blocks(torch.tensor(sources), torch.tensor(targets))
    for old, memory in zip(before, (cache.keys, cache.value_scales), strict=True):
        assert torch.equal(memory[2], old[0]) and torch.equal(memory[1], old[3])
    cache.copy_rows(torch.tensor([3 * 4 + 1]), torch.tensor([4 * 4 + 2]))
    for old, memory in zip(before, (cache.keys, cache.value_scales), strict=True):
        assert torch.equal(memory[4, :, 2], old[3, :, 1])
        assert torch.equal(memory[4, :, 1], old[4, :, 1])


def test_bytes_of_a_block() -> None:
    for format in ("f32", "bf16", "fp8", "mxint8"):
        cache = LayerCache(format, 3, 40, 24, block_len=8)
        cache.allocate(2, "cpu")
        memory = [cache.keys, cache.values, cache.key_scales, cache.value_scales]
        total = sum(m.numel() * m.element_size() for m in memory if m is not None)
        assert total == 2 * cache.bytes_per_block


def test_splits_are_few_where_there_is_no_room_for_more() -> None:
    assert num_splits(8, 1024, 64) == 16
    assert num_splits(4096, 1500, 64) == 1
    assert num_splits(8, 100, 64) == 2
