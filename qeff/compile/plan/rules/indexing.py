"""Node types that pick, place, cut or join, all along inner axes.

Gather, GatherElements, ScatterElements, Slice, Split, Concat, OneHot and Pad. A constant table that
is looked up by token or position is ``embed``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from qeff.compile.plan import layout as lay
from qeff.compile.plan.constants import Constant
from qeff.compile.plan.lowering import Fixed, Lowered, Lowering, Refusal, Tokens
from qeff.compile.plan.rules.counting import first_of_row
from qeff.compile.plan.rules.elementwise import combine
from qeff.compile.plan.rules.shapes import expand
from qeff.core.spec import AXIS_SLOTS, BATCH_INDEX

_SAME_NUMBERS = ("Flatten", "Gather", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def _gather(node: ir.Node, plan: Lowering) -> list[Lowered]:
    axis = node.attributes.get_int("axis", 0)
    if _is_slot_gather(node):
        return [plan.read_tokens(node.inputs[0])]
    data, index = plan.read(node.inputs[0]), plan.read(node.inputs[1])
    if isinstance(data, Fixed) and isinstance(index, Tokens):
        if axis % len(data.layout) or lay.all_tokens(data.layout):
            raise Refusal("looks tokens up along another axis than the first")
        table = plan.weight(data.constant)
        (found,) = plan.emit("embed", [table, index.index], dtype=_read_as(plan, table))
        return [Tokens(found, (*index.layout, *data.layout[1:]))]
    if isinstance(data, Tokens) and isinstance(index, Fixed):
        return [_take(plan, data, axis % len(data.layout), index)]
    raise Refusal("looks one token value up in another")


def _read_as(plan: Lowering, table: int) -> str:
    """The element type of what is read from a table: floats widen."""
    dtype = plan.dtype_of(table)
    return "f32" if dtype in ("f16", "bf16") else dtype


def _take(plan: Lowering, data: Tokens, axis: int, index: Fixed) -> Tokens:
    """Constant places of an inner axis: slices, joined when there are several."""
    target = (*data.layout[:axis], *index.layout, *data.layout[axis + 1 :])
    if data.layout[axis] == ("S",) and not index.constant.read().any():
        return first_of_row(plan, data, target)
    inner = lay.inner_axis(data.layout, axis)
    size = lay.size_of(data.layout[axis])
    places = [int(place) % size for place in index.constant.read().reshape(-1)]
    parts = [
        plan.emit("slice", [data.index], axis=inner, start=place, stop=place + 1)[0]
        for place in places
    ]
    joined = parts[0] if len(parts) == 1 else plan.emit("concat", parts, axis=inner)[0]
    return Tokens(plan.reshape(joined, lay.inner_shape(target)), target)


def _gather_elements(node: ir.Node, plan: Lowering) -> list[Lowered]:
    data, index = plan.read(node.inputs[0]), plan.read_tokens(node.inputs[1])
    if isinstance(data, Fixed):
        return [_rows_of_table(node, plan, data, index)]
    axis = lay.inner_axis(data.layout, node.attributes.get_int("axis", 0))
    return [Tokens(plan.emit("gather", [data.index, index.index], axis=axis)[0], index.layout)]


def _rows_of_table(node: ir.Node, plan: Lowering, data: Fixed, index: Tokens) -> Tokens:
    """A table [1, rows, width], the same for each sequence, and one row number for all features."""
    maker = node.inputs[1].producer() if node.inputs[1] is not None else None
    rank = len(data.layout)
    is_table = rank in (2, 3) and lay.size_of(data.layout[0]) == 1
    is_along = node.attributes.get_int("axis", 0) % rank == 1 and index.layout[1] == ("S",)
    if rank == 2 and is_table and is_along:  # one number in each row
        table = plan.weight(data.constant, lay.stored_shape(data.layout)[1:])
        (found,) = plan.emit("embed", [table, index.index], dtype=_read_as(plan, table))
        return Tokens(found, index.layout)
    if maker is None or maker.op_type not in ("Expand", "Tile") or not (is_table and is_along):
        raise Refusal("picks elements of a constant by each token")
    row = plan.read_tokens(maker.inputs[0])
    if lay.inner_shape(row.layout) != (1,) or row.layout[:2] != index.layout[:2]:
        raise Refusal("picks different rows of a constant for different features")
    table = plan.weight(data.constant, lay.stored_shape(data.layout)[1:])
    (found,) = plan.emit("embed", [table, plan.reshape(row.index, ())])
    return Tokens(found, index.layout)


def _scatter_elements(node: ir.Node, plan: Lowering) -> list[Lowered]:
    data, index, update = (plan.read(value) for value in node.inputs[:3])
    functions = {"none": "set", "add": "add"}
    reduction = node.attributes.get_string("reduction", "none")
    if reduction not in functions or not isinstance(index, Tokens):
        raise Refusal(f"scatters with the reduction {reduction!r}, or to constant places")
    axis = lay.inner_axis(data.layout, node.attributes.get_int("axis", 0))
    inputs = [
        item.index
        if isinstance(item, Tokens)
        else plan.weight(item.constant, lay.inner_shape(item.layout))
        for item in (data, index, update)
    ]
    (result,) = plan.emit("scatter", inputs, axis=axis, function=functions[reduction])
    return [Tokens(result, data.layout)]


def _slice(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x = plan.read_tokens(node.inputs[0])
    optional = [*node.inputs[3:], None, None]
    dims = lay.read_dims(node.outputs[0])
    if optional[0] is None:
        raise Refusal("names no axes")
    axes = [axis % len(x.layout) for axis in plan.numbers(optional[0])]
    steps = [1] * len(axes) if optional[1] is None else plan.numbers(optional[1])
    changed = [
        place
        for place, axis in enumerate(axes)
        if not lay.matches((x.layout[axis],), [dims[axis]]) or steps[place] != 1
    ]
    if not changed:
        return [x]
    starts, stops = plan.numbers(node.inputs[1]), plan.numbers(node.inputs[2])
    for place in changed:
        if x.layout[axes[place]] == ("S",) and (starts[place], stops[place]) == (0, 1):
            x = first_of_row(plan, x, lay.replace_axis(x.layout, axes[place], 1))
            continue
        x = cut(plan, x, axes[place], slice(starts[place], stops[place], steps[place]))
    return [x]


def cut(plan: Lowering, x: Tokens, axis: int, part: slice) -> Tokens:
    """A stretch of an inner axis, given as a Python slice is."""
    inner = lay.inner_axis(x.layout, axis)
    chosen = range(*part.indices(lay.size_of(x.layout[axis])))
    if chosen.step < 1:
        raise Refusal("cuts backwards")
    stop = max(chosen.start, chosen.stop)
    (index,) = plan.emit(
        "slice", [x.index], axis=inner, start=chosen.start, stop=stop, step=chosen.step
    )
    return Tokens(index, lay.replace_axis(x.layout, axis, len(chosen)))


def _split(node: ir.Node, plan: Lowering) -> list[Lowered]:
    x = plan.read_tokens(node.inputs[0])
    axis = node.attributes.get_int("axis", 0) % len(x.layout)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        sizes = plan.numbers(node.inputs[1])
    else:
        whole = lay.size_of(x.layout[axis])
        each = -(-whole // len(node.outputs))
        sizes = [min(each, whole - i * each) for i in range(len(node.outputs))]
    parts: list[Lowered] = []
    start = 0
    for size in sizes:
        parts.append(cut(plan, x, axis, slice(start, start + size)))
        start += size
    return parts


def _concat(node: ir.Node, plan: Lowering) -> list[Lowered]:
    parts = [plan.read(value) for value in node.inputs]
    values = [part for part in parts if isinstance(part, Tokens)]
    assert values, "constants are joined before they come here"
    axis = node.attributes["axis"].as_int() % len(values[0].layout)
    inner = lay.inner_axis(values[0].layout, axis)
    inputs = []
    for part in parts:
        wanted = lay.replace_axis(values[0].layout, axis, lay.size_of(part.layout[axis]))
        if isinstance(part, Tokens):
            if part.layout != wanted:
                raise lay.LayoutError(f"joins {part.layout} to {wanted}")
            inputs.append(part.index)
        else:
            full = expand(plan, part, wanted)
            assert isinstance(full, Fixed), "expanding a constant gives one"
            inputs.append(plan.weight(full.constant, lay.inner_shape(wanted)))
    (index,) = plan.emit("concat", inputs, axis=inner)
    return [Tokens(index, lay.replace_axis(values[0].layout, axis, plan.shape_of(index)[inner]))]


def _one_hot(node: ir.Node, plan: Lowering) -> list[Lowered]:
    """A one at each index: compare with every place, then choose between the two values."""
    index = plan.read_tokens(node.inputs[0])
    (depth,) = plan.numbers(node.inputs[1])
    values = plan.constants.number(node.inputs[2])
    if node.attributes.get_int("axis", -1) not in (-1, len(index.layout)) or values is None:
        raise Refusal("puts its axis elsewhere than last, or has values that are not constant")
    off, on = values
    places = Constant(f"range/{depth}", ir.tensor(np.arange(depth, dtype=np.int64)))
    layout = (*index.layout, (1,))
    lifted = Tokens(plan.reshape(index.index, lay.inner_shape(layout)), layout)
    hit = combine(plan, "eq", [lifted, Fixed(places, lay.plain((depth,)))])
    choices = [
        plan.weight(Constant(f"scalar/{number.dtype}/{number.item()!r}", ir.tensor(number)))
        for number in (np.asarray(on), np.asarray(off))
    ]
    return [Tokens(plan.emit("where", [hit.index, *choices])[0], hit.layout)]


def _pad(node: ir.Node, plan: Lowering) -> list[Lowered]:
    """Zeros (or another number) before and behind an inner axis."""
    x = plan.read_tokens(node.inputs[0])
    if node.attributes.get_string("mode", "constant") != "constant":
        raise Refusal("pads with other than a constant")
    rank = len(x.layout)
    axes = list(range(rank))
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        axes = [axis % rank for axis in plan.numbers(node.inputs[3])]
    amounts = plan.numbers(node.inputs[1])
    number = plan.constants.number(node.inputs[2]) if len(node.inputs) > 2 else None
    filler = np.asarray(0.0 if number is None else number.item(), np.float32)
    for place, axis in enumerate(axes):
        before, behind = amounts[place], amounts[place + len(axes)]
        if min(before, behind) < 0:
            raise Refusal("pads by a negative amount")
        if before or behind:
            x = _padded(plan, x, axis, (before, behind), filler)
    return [x]


def _padded(
    plan: Lowering, x: Tokens, axis: int, amounts: tuple[int, int], filler: np.ndarray
) -> Tokens:
    inner = lay.inner_axis(x.layout, axis)
    shape = plan.shape_of(x.index)
    number = Constant(f"fill/{filler.dtype}/{filler.item()!r}", ir.tensor(filler))
    parts = []
    for amount in amounts:
        block = (*shape[:inner], amount, *shape[inner + 1 :])
        parts.append(plan.weight(number.expand(block)) if amount else None)
    inputs = [index for index in (parts[0], x.index, parts[1]) if index is not None]
    (index,) = plan.emit("concat", inputs, axis=inner)
    return Tokens(index, lay.replace_axis(x.layout, axis, plan.shape_of(index)[inner]))


def _is_slot_gather(node: ir.Node) -> bool:
    """Whether a node picks the rows' slots from whole caches, as the program's cache does."""
    data, index = node.inputs[0], node.inputs[1]
    if data is None or data.shape is None or not len(data.shape):
        return False
    is_cache = str(data.shape[0]) == AXIS_SLOTS and node.attributes.get_int("axis", 0) == 0
    while index is not None and (maker := index.producer()) is not None:
        if maker.op_type not in _SAME_NUMBERS:
            return False
        index = maker.inputs[0]  # [batch, 1]: a gather can only pick its one column
    return is_cache and index is not None and index.name == BATCH_INDEX


def _gathered(node: ir.Node) -> Sequence[ir.Value | None]:
    return node.inputs[:1] if _is_slot_gather(node) else node.inputs


def _sliced(node: ir.Node) -> Sequence[ir.Value | None]:
    """A slice of whole axes may name its end by a length that is no constant."""
    return node.inputs[:1]


RULES: dict[str, Callable[[ir.Node, Lowering], list[Lowered]]] = {
    "Concat": _concat,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "OneHot": _one_hot,
    "Pad": _pad,
    "ScatterElements": _scatter_elements,
    "Slice": _slice,
    "Split": _split,
}
DEMANDS: dict[str, Callable[[ir.Node], Sequence[ir.Value | None]]] = {
    "Gather": _gathered,
    "Slice": _sliced,
}
