"""What a client saw of one request: when the first token came, the gaps after it, and the end.

Times are seconds of one clock. Knows nothing of how requests are sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Record:
    """One request; ``error`` says why there is no whole answer."""

    started: float
    num_prompt: int | None = None  # tokens, where somebody counted them
    num_output: int = 0
    first: float | None = None  # when the first text came
    last: float | None = None
    gaps: list[float] = field(default_factory=list)
    ended: float | None = None
    error: str | None = None

    def arrived(self, now: float) -> None:
        """Text came."""
        if self.last is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now

    @property
    def is_whole(self) -> bool:
        """Whether the answer came to its end."""
        return self.error is None and self.ended is not None

    @property
    def ttft(self) -> float | None:
        """Time to the first token."""
        return None if self.first is None else self.first - self.started

    @property
    def e2el(self) -> float | None:
        """Time to the end of the answer."""
        return None if self.ended is None else self.ended - self.started

    @property
    def tpot(self) -> float | None:
        """Time for each token after the first."""
        if self.first is None or self.last is None or self.num_output < 2:
            return None
        return (self.last - self.first) / (self.num_output - 1)

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "start_s": self.started,
            "input_tokens": self.num_prompt,
            "output_tokens": self.num_output,
            "ttft_s": self.ttft,
            "tpot_s": self.tpot,
            "e2el_s": self.e2el,
            "itl_s": self.gaps,
            "error": self.error,
        }
