"""A step that is begun before the tokens of the one before it are known.

Where a session chooses tokens itself and overlaps steps, its device need not wait for the host: the
next step takes its tokens from the last one on the device. A sequence that turns out to have ended
has one token too many in it, which nobody takes. Knows nothing of tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from qeff.generate.plan import Plan
from qeff.generate.steady import Steady
from qeff.runtime.session import Begun, Overlapping, Session


@dataclass(frozen=True, slots=True)
class Ahead:
    """A steady step on its way.

    Args:
        steady: What it repeats.
        plan: The step.
        begun: Gives its tokens.
        num_left: Steps, with this one, until the first of its sequences is full.
    """

    steady: Steady
    plan: Plan
    begun: Begun
    num_left: int

    @classmethod
    def begin(cls, session: Session, steady: Steady, plan: Plan, num_left: int) -> Ahead:
        """Start a step."""
        return cls(steady, plan, cast(Overlapping, session).begin(plan.batch), num_left)

    def follow(self, session: Session) -> Ahead | None:
        """Start the step after it, unless a sequence is full then or finds no block."""
        plan = self.steady.foresee() if self.num_left > 1 else None
        return None if plan is None else self.begin(session, self.steady, plan, self.num_left - 1)
