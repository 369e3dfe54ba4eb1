"""What the engines of a model have done so far, those that are closed again included.

Takes the engine's own counts, which begin anew with every engine, and gives counts that only rise.
"""

from __future__ import annotations

from dataclasses import dataclass

from qeff.generate.runner import Stats


@dataclass(slots=True)
class Totals:
    """Counts of a model's engines."""

    num_steps: int = 0
    num_step_tokens: int = 0
    num_preemptions: int = 0
    num_drafts: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    session_s: float = 0.0

    def keep(self, stats: Stats) -> None:
        """Add the counts of an engine that is being closed."""
        self.num_steps += stats.num_steps
        self.num_step_tokens += stats.num_step_tokens
        self.num_preemptions += stats.num_preemptions
        self.session_s += stats.session_s
        if stats.speculation is not None:
            self.num_drafts += stats.speculation.num_drafts
            self.num_drafted += stats.speculation.num_drafted
            self.num_accepted += stats.speculation.num_accepted

    def with_engine(self, stats: Stats | None) -> Totals:
        """These counts and those of the engine that is open."""
        whole = Totals(
            self.num_steps,
            self.num_step_tokens,
            self.num_preemptions,
            self.num_drafts,
            self.num_drafted,
            self.num_accepted,
            self.session_s,
        )
        if stats is not None:
            whole.keep(stats)
        return whole
