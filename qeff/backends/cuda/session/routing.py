"""Which experts a token has: the usual ways from a router's scores to them, as one stage.

Found by the flow of values: the best of scores, what is done to all scores before, and to the best
ones afterwards. Other ways stay the ops that they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qeff.backends.cuda.session.flow import Flow
from qeff.backends.cuda.session.kernels.experts_route import route
from qeff.backends.cuda.session.stages import State

MOST_EXPERTS = 4096  # that one program chooses from


@dataclass(slots=True)
class Route:
    """The experts of tokens, and their shares."""

    chosen: int
    before: str
    after: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]  # index and shares

    def run(self, state: State) -> None:
        scores = state.values[self.reads[0]]
        if scores.stride(-1) != 1:
            scores = scores.contiguous()
        shape = (len(scores), self.chosen)
        index = torch.empty(shape, dtype=torch.int64, device=scores.device)
        weight = torch.empty(shape, dtype=torch.float32, device=scores.device)
        route(scores, index, weight, self.before, self.after)
        state.values[self.writes[0]], state.values[self.writes[1]] = index, weight


def find_route(flow: Flow, place: int) -> tuple[int, set[int], Route] | None:
    """The way to the experts of a ``moe`` op: its place, the places of its ops, and the stage."""
    index, weight = flow.inputs[place][1:3]
    top = flow.maker.get(index)
    if top is None or not _chooses(flow, top):
        return None
    op = flow.program.ops[top]
    places, before, scores = {top}, "none", flow.inputs[top][0]
    start = flow.maker.get(scores)
    if start is not None and flow.users[scores] == [top] and (way := _way_before(flow, start)):
        places.add(start)
        before, scores = way, flow.inputs[start][0]
    found = _after(flow, op.outputs[0], weight)
    if found is None or flow.program.values[scores].dtype != "f32":
        return None
    after, more = found
    (chosen,) = flow.shape(index)
    return top, places | more, Route(chosen, before, after, (scores,), (index, weight))


def _chooses(flow: Flow, place: int) -> bool:
    """Whether an op takes the best of flat scores."""
    shape = flow.shape(flow.inputs[place][0])
    is_flat = len(shape) == 1 and shape[0] <= MOST_EXPERTS
    return is_flat and _is(flow, place, "topk", axis=0, largest=True)


def _is(flow: Flow, place: int, kind: str, **wanted: object) -> bool:
    """Whether an op is of a kind, with these attributes among its own."""
    return flow.program.ops[place].kind == kind and wanted.items() <= flow.attrs(place).items()


def _way_before(flow: Flow, place: int) -> str | None:
    if _is(flow, place, "softmax", axis=0):
        return "softmax"
    return "sigmoid" if _is(flow, place, "unary", function="sigmoid") else None


def _after(flow: Flow, best: int, weight: int) -> tuple[str, set[int]] | None:
    """What makes the shares of the best scores, and the places of its ops."""
    if weight == best:
        return "none", set()
    users, last = flow.users.get(best, []), flow.maker.get(weight)
    if last is None:
        return None
    if users == [last]:
        return ("softmax", {last}) if _is(flow, last, "softmax", axis=0) else None
    if not _is(flow, last, "binary", function="div") or flow.inputs[last][0] != best:
        return None
    total = flow.inputs[last][1]
    place = flow.maker.get(total)
    if place is None or sorted(users) != sorted((place, last)) or flow.users[total] != [last]:
        return None
    is_sum = _is(flow, place, "reduce", function="sum", axes=(0,), keepdims=True)
    return ("sum", {place, last}) if is_sum else None
