"""What an op kind is: its inputs, its attributes, a shape rule, a numpy reference and a cost.

A rule sees of each input only an :class:`Arg`. A reference sees arrays: a token or row value has
the tokens as its first axis, a weight has its own shape. Inputs that broadcast against each other
have the same number of inner axes (weights may have fewer), so that numpy's own rule is the right
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from qeff.container.program import PACKED_DTYPES, ROW_SCALED_DTYPES
from qeff.core.formats import FORMATS

Array = np.ndarray
Attrs = Mapping[str, Any]

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "bool": np.dtype(np.bool_),
}
FLOATS = ("f32", "f16", "bf16")
INTS = ("i64", "i32")
MATRICES = (*FLOATS, *PACKED_DTYPES, *ROW_SCALED_DTYPES)  # of a weight matrix
SHORT_BLOCK = 32  # blocks of this length may end behind the last column, longer ones may not


class RuleError(ValueError):
    """An op whose inputs or attributes break the rules of its kind."""


@dataclass(frozen=True, slots=True)
class Arg:
    """What a rule knows of a value; ``shape`` is that of one token, one row, or the weight."""

    kind: str  # token, row or weight
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_weight(self) -> bool:
        return self.kind == "weight"

    def bytes(self, num_tokens: int) -> int:
        """Bytes in memory, for a step of this many tokens."""
        if self.dtype in PACKED_DTYPES:
            packing = FORMATS[self.dtype]
            num_blocks = -(-self.shape[-1] // packing.block_len)
            return math.prod(self.shape[:-1]) * num_blocks * packing.block_bytes
        count = self.size if self.is_weight else self.size * num_tokens
        if self.dtype in ROW_SCALED_DTYPES:
            return count
        return count * NUMPY_DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Input:
    """One input of an op kind: which values it may be, of which element types."""

    name: str
    kinds: tuple[str, ...] = ("token", "row")
    dtypes: tuple[str, ...] = FLOATS
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an op kind: a type of bool, int, float, str or tuple (of whole numbers)."""

    name: str
    type: type[Any]
    default: Any = None
    is_required: bool = False
    choices: tuple[Any, ...] | None = None
    minimum: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run of an op takes: multiplications and additions, and bytes moved."""

    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """What the references need to know of a step besides their inputs.

    A token of sequence ``owners[t]`` lies in row ``slots[t]`` of that sequence's cache; row ``r``
    is place ``r % block_len`` of block ``tables[owner][r // block_len]``. ``caches[i]`` holds the
    keys and values of cache i, each [blocks, block_len, heads, dim].
    """

    positions: Array  # int64 [T]
    owners: Array  # int64 [T]
    slots: Array  # int64 [T]
    rows: Array  # int64 [R], the tokens whose logits are wanted
    tables: tuple[Array, ...] = ()
    caches: tuple[tuple[Array, Array], ...] = ()
    parents: Array | None = None  # int64 [T], -1 for none

    @property
    def block_len(self) -> int:
        return int(self.caches[0][0].shape[1]) if self.caches else 1


Inputs = Sequence[Arg | None]
Rule = Callable[[Inputs, Attrs], list[tuple[tuple[int, ...], str]]]
Reference = Callable[[Sequence[Array | None], Attrs, Step], list[Array]]
Flops = Callable[[Inputs, Attrs, int, int], int]


@dataclass(frozen=True, slots=True)
class OpKind:
    """A kind of op; ``rule`` gives the shape and dtype of each output.

    ``flops(inputs, attrs, num_tokens, context_len)``; None counts one for each output element.
    """

    inputs: tuple[Input, ...]
    rule: Rule
    reference: Reference
    attributes: tuple[Attribute, ...] = ()
    flops: Flops | None = None
    is_variadic: bool = False  # the last input may be given any number of times
    output_kind: str | None = None  # None: that of the inputs that are no weights
    is_led: bool = False  # of the kind of the first input, whatever the others are
    summary: str = field(default="", compare=False)

    def outputs(self, inputs: Inputs, attrs: Attrs) -> list[Arg]:
        """Check inputs and attributes, and say what comes out. Raises RuleError."""
        self._check_inputs(inputs)
        full = self.complete(attrs)
        kind = self.output_kind or common_kind(inputs[:1] if self.is_led else inputs)
        outputs = [Arg(kind, shape, dtype) for shape, dtype in self.rule(inputs, full)]
        return outputs

    def complete(self, attrs: Attrs) -> dict[str, Any]:
        """The attributes with the defaults filled in. Raises RuleError."""
        unknown = sorted(set(attrs) - {a.name for a in self.attributes})
        if unknown:
            raise RuleError(f"has no attribute {unknown[0]!r}")
        return {a.name: _read(a, attrs) for a in self.attributes}

    def cost(self, inputs: Inputs, attrs: Attrs, num_tokens: int, context_len: int = 0) -> Cost:
        """What a run over this many tokens takes, each seeing ``context_len`` tokens of cache."""
        outputs = self.outputs(inputs, attrs)
        moved = sum(arg.bytes(num_tokens) for arg in [*inputs, *outputs] if arg is not None)
        if self.flops is None:
            return Cost(sum(arg.size for arg in outputs) * num_tokens, moved)
        flops = self.flops(inputs, self.complete(attrs), num_tokens, context_len)
        return Cost(flops, moved)

    def _check_inputs(self, inputs: Inputs) -> None:
        required = sum(not i.is_optional for i in self.inputs)
        most = len(inputs) if self.is_variadic else len(self.inputs)
        if not required <= len(inputs) <= most:
            raise RuleError(f"takes {required} to {len(self.inputs)} inputs, not {len(inputs)}")
        for i, arg in enumerate(inputs):
            spec = self.inputs[min(i, len(self.inputs) - 1)]
            if arg is None:
                if not spec.is_optional:
                    raise RuleError(f"lacks its input {spec.name!r}")
            elif arg.kind not in spec.kinds:
                raise RuleError(f"input {spec.name!r} is a {arg.kind} value")
            elif arg.dtype not in spec.dtypes:
                raise RuleError(f"input {spec.name!r} has dtype {arg.dtype}")


def _read(attribute: Attribute, attrs: Attrs) -> Any:
    """One attribute, checked; whole numbers are taken where a float is meant."""
    name = attribute.name
    if name not in attrs:
        if attribute.is_required:
            raise RuleError(f"lacks its attribute {name!r}")
        return attribute.default
    value: Any = attrs[name]
    if attribute.type is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if attribute.type is tuple:
        if not isinstance(value, list | tuple) or not all(type(item) is int for item in value):
            raise RuleError(f"attribute {name!r} must be a list of whole numbers, not {value!r}")
        value = tuple(value)
    if type(value) is not attribute.type:
        raise RuleError(f"attribute {name!r} must be {attribute.type.__name__}, not {value!r}")
    if attribute.type is float and not math.isfinite(value):
        raise RuleError(f"attribute {name!r} is {value!r}")
    if attribute.choices is not None and value not in attribute.choices:
        raise RuleError(f"attribute {name!r} is {value!r}, not one of {attribute.choices}")
    if attribute.minimum is not None and value < attribute.minimum:
        raise RuleError(f"attribute {name!r} is {value!r}, below {attribute.minimum}")
    return value


def common_kind(inputs: Inputs) -> str:
    """The kind of the inputs that are no weights. Raises RuleError unless it is one."""
    found = {arg.kind for arg in inputs if arg is not None and not arg.is_weight}
    if len(found) != 1:
        raise RuleError(f"mixes {sorted(found)} values" if found else "has only weights as inputs")
    return found.pop()


def present(inputs: Sequence[Any], index: int) -> Any:
    """An optional input, or None when it is left out."""
    return inputs[index] if index < len(inputs) else None


def given(inputs: Sequence[Array | None], index: int) -> Array:
    """A required input of a reference."""
    array = inputs[index]
    assert array is not None, f"required input {index} is absent"
    return array


def known(inputs: Inputs, index: int) -> Arg:
    """A required input of a rule; absence was refused before."""
    arg = inputs[index]
    assert arg is not None, f"required input {index} is absent"
    return arg


def check_matrix(weight: Arg, is_transposed: bool = False) -> None:
    """Raise RuleError unless a packed matrix lies the right way round and has whole blocks."""
    if weight.dtype in FLOATS:
        return
    if is_transposed:
        raise RuleError(f"has a transposed weight of {weight.dtype}")
    if len(weight.shape) < 2:
        raise RuleError(f"has a weight {weight.shape} of {weight.dtype}")
    if weight.dtype in ROW_SCALED_DTYPES:
        return
    block_len = FORMATS[weight.dtype].block_len
    if block_len > SHORT_BLOCK and weight.shape[-1] % block_len:
        raise RuleError(f"has a weight {weight.shape} of {weight.dtype}, in blocks of {block_len}")


def check_axis(axis: int, shape: tuple[int, ...]) -> int:
    """An axis of the inner shape, counted from 0. Raises RuleError when there is none."""
    if not 0 <= axis < len(shape):
        raise RuleError(f"axis {axis} is outside the inner shape {shape}")
    return axis


def broadcast(args: Sequence[Arg]) -> tuple[int, ...]:
    """The inner shape that the args broadcast to; see the module's text. Raises RuleError."""
    ranks = {len(arg.shape) for arg in args if not arg.is_weight}
    if len(ranks) > 1:
        raise RuleError(f"inner shapes {[a.shape for a in args]} differ in their number of axes")
    rank = max(ranks, default=0)
    if any(len(arg.shape) > rank for arg in args):
        raise RuleError("a weight has more axes than the values it is combined with")
    try:
        shape = np.broadcast_shapes(*(arg.shape for arg in args))
    except ValueError:
        raise RuleError(f"inner shapes {[a.shape for a in args]} do not broadcast") from None
    return tuple(int(size) for size in shape)


def same_dtype(args: Sequence[Arg]) -> str:
    """The element type of a result; float weights take part in any float type. Raises RuleError."""
    values = {arg.dtype for arg in args if not arg.is_weight}
    if len(values) != 1:
        raise RuleError(f"mixes the dtypes {sorted(values)}")
    dtype = values.pop()
    for arg in args:
        if arg.dtype != dtype and not (arg.dtype in FLOATS and dtype in FLOATS):
            raise RuleError(f"combines {dtype} with a weight of {arg.dtype}")
    return dtype


def as_float(array: Array) -> Array:
    """The array in float32, in which every reference computes."""
    return array.astype(np.float32, copy=False)
