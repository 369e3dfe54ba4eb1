"""Runs the stages of a program over a described step, and gives values up when nobody reads them.

Knows nothing of batches, graphs or how tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qeff.backends.cuda.session.building import Builder
from qeff.backends.cuda.session.flow import Flow
from qeff.backends.cuda.session.kernels.embed import resolve
from qeff.backends.cuda.session.merging import Group
from qeff.backends.cuda.session.slots import assign_slots, last_uses
from qeff.backends.cuda.session.stages import Attend, Embed, Stage, State, Workplace
from qeff.backends.cuda.session.step_info import StepInfo
from qeff.backends.cuda.session.weights import Weights
from qeff.container.program import Program


class Executor:
    """A program's stages for steps whose rows are all tokens, and for other steps."""

    def __init__(
        self, program: Program, groups: Sequence[Group], weights: Weights, place: Workplace
    ) -> None:
        self.program, self.place = program, place
        self._plans: dict[bool, list[tuple[Stage, tuple[int, ...]]]] = {}
        self._logits: dict[bool, int] = {}
        for same_rows in (True, False):
            flow = Flow(program, same_rows)
            stages = Builder(flow, groups, weights).build()
            self._logits[same_rows] = flow.resolve(program.logits)
            assign_slots(stages, self._logits[same_rows])
            self._plans[same_rows] = _with_ends(stages, self._logits[same_rows])
        stages = [stage for stage, _ in self._plans[True]]
        place.specs = [stage.spec for stage in stages if isinstance(stage, Attend)]
        read = [stage for plan in self._plans.values() for stage, _ in plan]
        self._reads_positions = any(program.positions in stage.reads for stage in read)
        self._only_embeds = all(
            isinstance(stage, Embed) for stage in read if program.tokens in stage.reads
        )

    def stages(self, same_rows: bool) -> list[Stage]:
        """What a step consists of."""
        return [stage for stage, _ in self._plans[same_rows]]

    def run(
        self, info: StepInfo, same_rows: bool, chosen: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits f32 [rows, vocab]; a token of −1 − i is entry i of ``chosen``."""
        tokens = info.tokens[: info.num_tokens]
        if chosen is not None and not self._only_embeds:
            resolve(tokens, chosen)
            chosen = None
        values = {self.program.tokens: tokens}
        if self._reads_positions:
            values[self.program.positions] = info.positions[: info.num_tokens].long()
        state = State(values, info, self.place, chosen)
        for stage, ended in self._plans[same_rows]:
            stage.run(state)
            for index in ended:
                del values[index]
        return values[self._logits[same_rows]].float()


def _with_ends(stages: Sequence[Stage], logits: int) -> list[tuple[Stage, tuple[int, ...]]]:
    """Each stage, and the values that nothing reads after it."""
    ends: list[list[int]] = [[] for _ in stages]
    for index, place in last_uses(stages).items():
        if index != logits:
            ends[place].append(index)
    return [(stage, tuple(ended)) for stage, ended in zip(stages, ends, strict=True)]
