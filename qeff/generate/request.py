"""What is asked of the engine and what it gives back: requests, results and their parts.

Frozen values, checked when they are made. Knows nothing of tokenizers, cache blocks or sessions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import uuid4

from qeff.core.errors import OptionTypeError, RequestError
from qeff.generate import checks
from qeff.generate.params import MAX_SEED, SamplingParams

__all__ = [
    "MAX_SEED",
    "Choice",
    "Delta",
    "FinishReason",
    "Request",
    "Result",
    "SamplingParams",
    "Timings",
]


class FinishReason(StrEnum):
    """Why a request ended."""

    LENGTH = "length"  # max_tokens were made
    STOP = "stop"  # a stop string or a stop token came, or the constraint is satisfied
    EOS = "eos"  # the model ended its text
    CONTEXT = "context"  # prompt and output fill the context
    CANCELLED = "cancelled"  # the caller did not want more
    ERROR = "error"  # no token could be chosen; the result says why


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt as token ids, and how to go on from it.

    Args:
        prompt: Token ids, at least one.
        params: How tokens are chosen and when to stop.
        id: Names the request in what comes back.
        priority: Requests of a lower number run first.
        cache_salt: Cached prefixes are shared among requests of an equal salt alone.
        constraint: What the output must follow, as a constraint object; None is free.
    """

    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    id: str = field(default_factory=lambda: uuid4().hex)
    priority: int = 0
    cache_salt: str = ""
    constraint: Any | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", checks.token_ids("prompt", self.prompt))
        if not self.prompt:
            raise RequestError("the prompt is empty", "give at least one token")
        checks.check_whole("priority", self.priority)
        if not isinstance(self.cache_salt, str):
            raise OptionTypeError(f"cache_salt must be a string, not {self.cache_salt!r}")


class Choice(NamedTuple):
    """A token and how likely the model found it.

    Log-probabilities are of the model's own distribution: the log-softmax of its logits before
    bias, masks, penalties, temperature and filters.
    """

    token: int
    logprob: float | None = None  # None where it was not asked for
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens and their log-probabilities


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds a request spent waiting, reading its prompt, and writing after the first token."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        """Seconds from asking to the first token."""
        return self.queue_s + self.prefill_s

    @property
    def total_s(self) -> float:
        return self.queue_s + self.prefill_s + self.decode_s


@dataclass(frozen=True, slots=True)
class Result:
    """Everything a finished request gave.

    ``token_ids`` hold the token that ended the output; ``text`` holds neither it nor a stop string.
    ``logprobs`` has one entry for each of ``token_ids``, ``prompt_logprobs`` one for each token of
    the prompt, the first of them without a number; both are None when not asked for.
    """

    request_id: str
    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish: FinishReason
    timings: Timings
    logprobs: tuple[Choice, ...] | None = None
    prompt_logprobs: tuple[Choice, ...] | None = None
    cumulative_logprob: float | None = None  # of the whole output
    num_cached_tokens: int = 0  # of the prompt, that were not computed again
    num_drafted: int = 0  # tokens that a proposer guessed
    num_accepted: int = 0  # of those, how many were right
    num_forced: int = 0  # tokens that took no step of their own: the constraint forced them
    alternatives: tuple[Result, ...] = ()  # the other ones of n; beams and best_of by likelihood
    index: int = 0  # which of the request's outputs
    error: RequestError | None = None  # why it ended, where ``finish`` is ERROR

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens after the first, for each second of decoding; 0 when there was none."""
        seconds = self.timings.decode_s
        return (len(self.token_ids) - 1) / seconds if seconds > 0 else 0.0

    @property
    def acceptance(self) -> float:
        """The share of guessed tokens that were right; 0 when nothing was guessed."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0


class Delta(NamedTuple):  # made for every sequence of every step, and quick to make
    """What one step added to one output of a request; the last one carries the whole result."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    result: Result | None = None
    index: int = 0  # type: ignore[assignment]  # which of the n outputs; no tuple is searched
    logprobs: tuple[Choice, ...] = ()  # one for each of token_ids, when asked for

    @property
    def finish(self) -> FinishReason | None:
        return self.result.finish if self.result else None
