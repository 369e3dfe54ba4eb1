"""Products of chosen experts: the matrices of all experts lie one below the other.

Few tokens read each of their experts' matrices once, gathered; many tokens go expert by expert,
which needs the host to know how many each has. Knows nothing of how experts are chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from qeff.backends.cuda.session.flow import Flow
from qeff.backends.cuda.session.generic import ACTIVATIONS
from qeff.backends.cuda.session.matrix import Matrix
from qeff.backends.cuda.session.stages import Stage, State
from qeff.backends.cuda.session.table import look_up, write_floats
from qeff.container.program import ABSENT

if TYPE_CHECKING:
    from qeff.backends.cuda.session.building import Store

CLAMPED = "swiglu_clamped"
GATHERED = 64  # pairs of token and expert whose matrices are gathered


@dataclass(slots=True)
class Experts:
    """Σ weight · down(activation(up(x))) over a token's experts."""

    up: Matrix  # [experts · u, h]
    down: Matrix  # [experts · o, m]
    up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    num_experts: int
    attrs: dict[str, Any]
    reads: tuple[int, ...]
    writes: tuple[int, ...]

    def run(self, state: State) -> None:
        x, index, weight = (state.values[i] for i in self.reads)
        kind = state.place.compute
        num, chosen = index.shape
        tokens = torch.arange(num, device=x.device).repeat_interleave(chosen)
        experts = index.reshape(-1).long()
        inputs = x.to(kind).index_select(0, tokens)
        run = self._gathered if len(experts) <= GATHERED else self._by_expert
        made = run(inputs, experts) * weight.reshape(-1, 1).float()
        out = made.reshape(num, chosen, -1).sum(1)
        state.values[self.writes[0]] = out.to(kind)

    def _gathered(self, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Results f32 of pairs; nothing of it waits for the host."""
        hidden = self._times(self.up, x, experts, self.up_bias)
        return self._times(self.down, self._activate(hidden).to(x.dtype), experts, self.down_bias)

    def _times(
        self, matrix: Matrix, x: torch.Tensor, experts: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        size = matrix.shape[0] // self.num_experts
        rows = experts[:, None] * size + torch.arange(size, device=x.device)
        flat = rows.reshape(-1)
        if matrix.is_plain:
            floats = matrix.codes.index_select(0, flat).to(x.dtype)
        else:
            floats = torch.empty((len(flat), matrix.shape[1]), dtype=x.dtype, device=x.device)
            look_up(matrix, flat, 0, floats)
        made = (floats.reshape(len(x), size, -1) @ x[:, :, None])[..., 0].float()
        return made if bias is None else made + bias.index_select(0, experts).float()

    def _by_expert(self, x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """The same, each expert's pairs together."""
        order = torch.argsort(experts, stable=True)
        counts = torch.bincount(experts, minlength=self.num_experts).tolist()
        width = self.down.shape[0] // self.num_experts
        out = torch.empty((len(x), width), dtype=torch.float32, device=x.device)
        start = 0
        for expert, count in enumerate(counts):
            if not count:
                continue
            mine = order[start : start + count]
            start += count
            hidden = self._of_one(self.up, x[mine], expert, self.up_bias)
            made = self._of_one(
                self.down, self._activate(hidden).to(x.dtype), expert, self.down_bias
            )
            out.index_copy_(0, mine, made)
        return out

    def _of_one(
        self, matrix: Matrix, x: torch.Tensor, expert: int, bias: torch.Tensor | None
    ) -> torch.Tensor:
        size = matrix.shape[0] // self.num_experts
        part = slice(expert * size, (expert + 1) * size)
        scales = None if matrix.scales is None else matrix.scales[part]
        own = Matrix(matrix.format, (size, matrix.shape[1]), matrix.codes[part], scales)
        if own.is_plain:
            floats = own.codes.to(x.dtype)
        else:
            floats = torch.empty(own.shape, dtype=x.dtype, device=x.device)
            write_floats(own, floats)
        made = (x @ floats.T).float()
        return made if bias is None else made + bias[expert].float()

    def _activate(self, hidden: torch.Tensor) -> torch.Tensor:
        activation, how = self.attrs["activation"], self.attrs["gate"]
        if how == "none":
            return ACTIVATIONS[activation](hidden)
        if how == "half":
            gate, up = hidden.chunk(2, -1)
        else:
            gate, up = hidden[..., 0::2], hidden[..., 1::2]
        if activation != CLAMPED:
            return ACTIVATIONS[activation](gate) * up
        limit = self.attrs["limit"]
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(self.attrs["alpha"] * gate)


def experts_stage(flow: Flow, place: int, store: Store) -> Stage:
    """The stage of a ``moe`` op."""
    inputs = (*flow.inputs[place], ABSENT, ABSENT)[:7]
    biases = [None if i == ABSENT else store.plain(i) for i in inputs[5:7]]
    return Experts(
        store.matrix(inputs[3]),
        store.matrix(inputs[4]),
        biases[0],
        biases[1],
        flow.shape(inputs[3])[0],
        dict(flow.attrs(place)),
        inputs[:3],
        flow.program.ops[place].outputs,
    )
