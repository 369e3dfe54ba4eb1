"""Where the values of a step lie: which stages share memory, and which write over what they read.

A stage's result lies in a numbered *slot*, which another takes once nothing reads it or a view of
it again. A sum may be written over its residual when that is read for the last time. Decided once
for a list of stages; knows nothing of sizes or tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qeff.backends.cuda.session.experts import Experts
from qeff.backends.cuda.session.stages import LOGITS, Attend, Embed, Product, Stage

_SLOTTED = (Product, Attend, Embed, Experts)


@dataclass(slots=True)
class _Memory:
    """What one stage made, and everything that may be a view of it."""

    value: int | None  # the value that is all of it
    members: set[int]


def last_uses(stages: Sequence[Stage]) -> dict[int, int]:
    """The place of the last stage that reads or writes each value."""
    last: dict[int, int] = {}
    for place, stage in enumerate(stages):
        for index in (*stage.reads, *stage.writes):
            last[index] = place
    return last


def assign_slots(stages: Sequence[Stage], logits: int) -> None:
    """Tell every stage where its result goes."""
    last = last_uses(stages)
    last[logits] = len(stages)
    memories: dict[int, _Memory] = {}  # by the place of the stage that made them
    lies_in: dict[int, set[int]] = {}  # memories that a value may lie in
    for place, stage in enumerate(stages):
        if isinstance(stage, _SLOTTED):
            over = _overwritten(stage, place, memories, lies_in, last)
            if isinstance(stage, Product):
                stage.is_in_place = over is not None
            homes = {place if over is None else over}
            if over is None:
                whole = stage.writes[0] if len(stage.writes) == 1 else None
                memories[place] = _Memory(whole, set())
            else:
                memories[over].value = stage.writes[0]
        else:  # any of its results may be a view of any input
            homes = set().union(*(lies_in.get(index, ()) for index in stage.reads))
        for index in stage.writes:
            lies_in[index] = homes
            for home in homes:
                memories[home].members.add(index)
    _number(stages, logits, memories, last)


def _overwritten(
    stage: Stage,
    place: int,
    memories: dict[int, _Memory],
    lies_in: dict[int, set[int]],
    last: dict[int, int],
) -> int | None:
    """The memory that a sum may be written over: all of its residual, which nobody reads again."""
    if not isinstance(stage, Product) or stage.is_wide or len(stage.reads) < 2:
        return None
    x, residual = stage.reads
    homes = lies_in.get(residual, set())
    if len(homes) != 1:
        return None
    home = next(iter(homes))
    memory = memories[home]
    is_free = all(last[index] <= place for index in memory.members)
    is_apart = home not in lies_in.get(x, ())
    return home if memory.value == residual and is_free and is_apart else None


def _number(
    stages: Sequence[Stage], logits: int, memories: dict[int, _Memory], last: dict[int, int]
) -> None:
    """The lowest free slot for each memory; logits have one of their own."""
    ends: dict[int, int] = {}  # slots in use, and the last place that reads them
    for place, stage in enumerate(stages):
        memory = memories.get(place)
        if memory is None:
            continue
        if logits in memory.members:
            if isinstance(stage, Product):
                stage.slot = LOGITS
            continue
        ends = {slot: end for slot, end in ends.items() if end >= place}
        slot = next(number for number in range(len(ends) + 1) if number not in ends)
        ends[slot] = max((last[index] for index in memory.members), default=place)
        assert isinstance(stage, _SLOTTED), "only such stages have memory of their own"
        stage.slot = slot
