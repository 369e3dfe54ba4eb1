"""Counts the tokens of an answer while it comes, for the usage that protocols report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qeff.apps.server.served import Progress
from qeff.generate.fields import Field


@dataclass(slots=True)
class Tally:
    """Tokens so far.

    ``reasoning`` counts the tokens of those steps that gave nothing but thoughts.
    """

    prompt: int
    completion: int = 0
    cached: int = 0
    reasoning: int = 0

    def note(self, progress: Progress) -> None:
        """Count what a step added."""
        self.completion += len(progress.choices)
        fields = {piece.field for piece in progress.pieces}
        if fields == {Field.REASONING}:
            self.reasoning += len(progress.choices)
        if progress.result is not None:
            self.cached = max(self.cached, progress.result.num_cached_tokens)

    def openai(self) -> dict[str, Any]:
        """As OpenAI's completions report it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }

    def responses(self) -> dict[str, Any]:
        """As OpenAI's responses report it."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }

    def anthropic(self) -> dict[str, Any]:
        """As Anthropic's messages report it: tokens read from the cache are counted apart."""
        return {
            "input_tokens": self.prompt - self.cached,
            "output_tokens": self.completion,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.cached,
        }
