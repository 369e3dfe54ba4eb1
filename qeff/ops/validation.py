"""Whether a program is one: ops known, inputs and attributes right, shapes as declared.

Engines call this before they plan memory for a program. Knows nothing of weights' values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qeff.container.program import ABSENT, Op, Program
from qeff.core.errors import ContainerError
from qeff.core.spec import CacheLayer
from qeff.ops.base import FLOATS, Arg, RuleError
from qeff.ops.registry import kinds

MAX_INNER_SIZE = 1 << 26  # elements of one token; more is a damaged or a hostile program
MAX_WEIGHT_SIZE = 1 << 40


def validate(program: Program) -> None:
    """Raise ContainerError unless every op of the program keeps the rules of its kind."""
    _check_border(program)
    program.check()
    _check_sizes(program)
    _check_caches(program.caches)
    args = [Arg(v.kind, tuple(v.shape), v.dtype) for v in program.values]
    written: set[int] = set()
    for op in program.ops:
        try:
            _check_op(op, args)
            if op.kind == "attention":
                _check_cache_use(op, args, program.caches, written)
        except RuleError as error:
            raise ContainerError(
                f"program op {op.name!r} ({op.kind}) {error}", "compile again"
            ) from error


def _check_border(program: Program) -> None:
    """The values that the caller fills and reads exist and have the shapes a session relies on."""
    for name, index in (("tokens", program.tokens), ("positions", program.positions)):
        value = program.values[index] if 0 <= index < len(program.values) else None
        if value is None or (value.kind, tuple(value.shape), value.dtype) != ("token", (), "i64"):
            raise ContainerError(
                f"program input {name!r} is no i64 for each token", "compile again"
            )
    if program.tokens == program.positions:
        raise ContainerError(
            "program inputs 'tokens' and 'positions' are one value", "compile again"
        )
    logits = program.values[program.logits] if 0 <= program.logits < len(program.values) else None
    if logits is None or logits.kind != "row" or len(logits.shape) != 1:
        raise ContainerError("program output 'logits' is no vector for each row", "compile again")
    if logits.dtype not in FLOATS:
        raise ContainerError(f"program output 'logits' has dtype {logits.dtype}", "compile again")


def _check_sizes(program: Program) -> None:
    for value in program.values:
        limit = MAX_WEIGHT_SIZE if value.kind == "weight" else MAX_INNER_SIZE
        if math.prod(value.shape) > limit:
            raise ContainerError(
                f"program value {value.name!r} is too large: {value.shape}", "compile again"
            )


def _check_caches(caches: Sequence[CacheLayer]) -> None:
    for layer in caches:
        sizes = (layer.num_kv_heads, layer.key_dim, layer.value_dim)
        whole = all(type(size) is int for size in (*sizes, layer.index, layer.window))
        if not whole or min(sizes) < 1 or math.prod(sizes[:2]) > MAX_INNER_SIZE:
            raise ContainerError(
                f"program cache {layer.index!r} has sizes {sizes}", "compile again"
            )


def _check_op(op: Op, args: Sequence[Arg]) -> None:
    kind = kinds().get(op.kind)
    if kind is None:
        raise RuleError("is of no known kind")
    inputs = [None if i == ABSENT else args[i] for i in op.inputs]
    expected = kind.outputs(inputs, op.attrs)
    declared = [args[i] for i in op.outputs]
    if declared != expected:
        raise RuleError(f"declares {declared}, its rule says {expected}")


def _check_cache_use(
    op: Op, args: Sequence[Arg], caches: Sequence[CacheLayer], written: set[int]
) -> None:
    """An attention fits the cache it names, and reads no cache that nothing wrote."""
    index = int(op.attrs["cache"])
    if index >= len(caches):
        raise RuleError(f"names cache {index} of {len(caches)}")
    layer = caches[index]
    query, result = args[op.inputs[0]], args[op.outputs[0]]
    if query.shape[0] % layer.num_kv_heads or query.shape[1] != layer.key_dim:
        raise RuleError(f"has queries {query.shape} that do not fit cache {index}")
    if result.shape[1] != layer.value_dim:
        raise RuleError(
            f"gives {result.shape}, but cache {index} holds values of {layer.value_dim}"
        )
    if len(op.inputs) > 1 and op.inputs[1] != ABSENT:
        if args[op.inputs[1]].shape[0] != layer.num_kv_heads:
            raise RuleError(f"writes {args[op.inputs[1]].shape[0]} heads into cache {index}")
        if index in written:
            raise RuleError(f"writes cache {index}, which was written before")
        written.add(index)
    elif index not in written:
        raise RuleError(f"reads cache {index} before it is written")
