"""Which matrices lie one below the other in memory: products that read the same value.

A *group* becomes one matrix and, where its products run on the same tokens, one launch. Decided
once for a program, whatever steps it will run. Knows nothing of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from qeff.backends.cuda.session.flow import Flow, wide_products
from qeff.container.program import ABSENT


@dataclass(frozen=True, slots=True)
class Group:
    """Places of products in the order of their rows; with a gate, the gate's first, then up's."""

    places: tuple[int, ...]
    gated: int | None = None  # the place of the op that multiplies both


def merge(flow: Flow) -> list[Group]:
    """Every product of the program, alone or with others; ``flow`` has the same rows."""
    products = [place for place, op in enumerate(flow.program.ops) if op.kind == "linear"]
    counts: dict[int, int] = {}
    for place in range(len(flow.program.ops)):
        for index in set(flow.inputs[place]):
            counts[index] = counts.get(index, 0) + 1
    wide = wide_products(flow.program)
    free = [place for place in products if place not in wide and counts[_weight(flow, place)] == 1]
    groups = _gates(flow, set(free))
    taken = {place for group in groups for place in group.places}
    beside: dict[tuple[int, str], list[int]] = {}
    for place in free:
        if place not in taken:
            form = flow.program.values[_weight(flow, place)].dtype
            beside.setdefault((flow.inputs[place][0], form), []).append(place)
    groups += [Group(tuple(places)) for places in beside.values()]
    taken = {place for group in groups for place in group.places}
    groups += [Group((place,)) for place in products if place not in taken]
    return sorted(groups, key=lambda group: group.places[0])


def _weight(flow: Flow, place: int) -> int:
    return flow.inputs[place][1]


def _gates(flow: Flow, free: set[int]) -> list[Group]:
    """Pairs of products that nothing reads but the gate that multiplies them."""
    found = []
    for place, op in enumerate(flow.program.ops):
        if op.kind != "gated":
            continue
        gate, up = (flow.maker.get(index, -1) for index in flow.inputs[place])
        if gate == up or not {gate, up} <= free:
            continue
        is_fit = (
            flow.inputs[gate][0] == flow.inputs[up][0]
            and flow.program.values[_weight(flow, gate)].dtype
            == flow.program.values[_weight(flow, up)].dtype
            and flow.shape(_weight(flow, gate)) == flow.shape(_weight(flow, up))
            and all(flow.users[index] == [place] for index in flow.inputs[place])
        )
        if is_fit:
            found.append(Group((gate, up), gated=place))
    return found


def bias_of(flow: Flow, place: int) -> int | None:
    """The value of a product's bias."""
    inputs = flow.inputs[place]
    return inputs[2] if len(inputs) > 2 and inputs[2] != ABSENT else None
