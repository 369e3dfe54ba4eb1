"""A sequence on its way: its tokens, how many of them the cache holds, and in which blocks.

The scheduler plans with it, the engine adds tokens to it. Knows nothing of sampling, text or of how
blocks are shared.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Choosing = tuple[float, float, float, int, tuple[int, int]]


@dataclass(slots=True, eq=False)
class SequenceState:
    """All tokens of a sequence and its place in the cache.

    Args:
        id: Names it among all sequences of an engine.
        tokens: The prompt, then the output.
        num_prompt: How many of the tokens are the prompt.
        priority: Lower runs first; equal ones in order of arrival.
        salt: Cache blocks are shared only among equal salts.
        shares: Whether blocks that others have computed may be taken over.
        scores_prompt: Whether the logits of every prompt token are wanted.
        choosing: How a session that chooses tokens chooses this sequence's: temperature, top-p,
            min-p, top-k and the two words of its seed; None where the logits are wanted.
    """

    id: str
    tokens: list[int]
    num_prompt: int
    priority: int = 0
    salt: str = ""
    shares: bool = True
    scores_prompt: bool = False
    choosing: Choosing | None = None
    arrival: int = field(init=False, default=0)  # set by the scheduler
    is_parked: bool = field(init=False, default=False)  # has all it needs until it gets a token
    num_computed: int = field(init=False, default=0)  # tokens whose keys and values are kept
    num_reused: int = field(init=False, default=0)  # those that others had computed, at the start
    blocks: list[int] = field(init=False, default_factory=list)
    num_dropped: int = field(init=False, default=0)  # first blocks, left by every window
    num_indexed: int = field(init=False, default=0)  # full blocks that the prefix index knows of
    node: int = field(init=False, default=0)  # the last of those in the prefix index

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not in the cache."""
        return len(self.tokens) - self.num_computed

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller runs first and gives way last."""
        return self.priority, self.arrival
