"""What is asked of the engine and what it gives back: requests, sampling settings, results.

Frozen values, checked when they are made, so that a bad setting is answered before anything runs.
Knows nothing of tokenizers, cache blocks or sessions.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import uuid4

from qeff.core.errors import OptionTypeError, OptionValueError, RequestError

MAX_SEED = 2**64 - 1


class FinishReason(StrEnum):
    """Why a request ended."""

    LENGTH = "length"  # max_tokens were made
    STOP = "stop"  # a stop string or a stop token came
    EOS = "eos"  # the model ended its text
    CONTEXT = "context"  # prompt and output fill the context
    CANCELLED = "cancelled"  # the caller did not want more


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop; the defaults are greedy, until the model ends.

    Args:
        max_tokens: Most tokens to make; None goes on until the context is full.
        min_tokens: The model's end, stop tokens and stop strings do not count before this many.
        temperature: 0 takes the likeliest token; larger is more random.
        top_k: Only this many likeliest tokens; 0 is off.
        top_p: Only the likeliest tokens whose probabilities sum to this; 1 is off.
        min_p: Only tokens at least this fraction as likely as the likeliest; 0 is off.
        repetition_penalty: Above 1 makes every token of prompt and output less likely.
        presence_penalty: Subtracted from the logit of each token that the output holds.
        frequency_penalty: Subtracted once for each time the output holds the token.
        seed: Equal seeds give equal tokens, alone or in a batch; None draws one.
        stop: Strings that end the text; they are not part of it.
        stop_token_ids: Tokens that end the output besides the model's own.
        ignore_eos: Go on when the model says that it is done.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _check_whole("max_tokens", self.max_tokens, 1)
        _check_whole("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise OptionValueError(
                f"min_tokens {self.min_tokens} is larger than max_tokens {self.max_tokens}"
            )
        _check_number("temperature", self.temperature, 0.0, math.inf)
        _check_whole("top_k", self.top_k, 0)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, math.inf)
        for name in ("top_p", "repetition_penalty"):
            if getattr(self, name) == 0:
                raise OptionValueError(f"{name} must be above 0", "1 turns it off")
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _check_whole("seed", self.seed, 0)
            if self.seed > MAX_SEED:
                raise OptionValueError(f"seed {self.seed} does not fit 64 bits")
        if not isinstance(self.ignore_eos, bool):
            raise OptionTypeError(f"ignore_eos must be True or False, not {self.ignore_eos!r}")
        object.__setattr__(self, "stop", _strings("stop", self.stop))
        object.__setattr__(
            self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids)
        )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt as token ids, and how to go on from it."""

    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    id: str = field(default_factory=lambda: uuid4().hex)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", _token_ids("prompt", self.prompt))
        if not self.prompt:
            raise RequestError("the prompt is empty", "give at least one token")


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
    """

    request_id: str
    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish: FinishReason
    timings: Timings

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens after the first, for each second of decoding; 0 when there was none."""
        seconds = self.timings.decode_s
        return (len(self.token_ids) - 1) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one request; the last one carries the whole result."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    result: Result | None = None

    @property
    def finish(self) -> FinishReason | None:
        return self.result.finish if self.result else None


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionTypeError(f"{name} must be a whole number, not {value!r}")
    if value < least:
        raise OptionValueError(f"{name} must be at least {least}, not {value}")


def _check_number(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionTypeError(f"{name} must be a number, not {value!r}")
    if not (math.isfinite(value) and least <= value <= most):
        bounds = f"at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
        raise OptionValueError(f"{name} must be {bounds}, not {value}")


def _strings(name: str, values: str | Iterable[str]) -> tuple[str, ...]:
    found = (values,) if isinstance(values, str) else tuple(values)
    for value in found:
        if not isinstance(value, str):
            raise OptionTypeError(f"{name} must hold strings, not {value!r}")
        if not value:
            raise OptionValueError(f"{name} holds an empty string", "it would end every text")
    return found


def _token_ids(name: str, values: Iterable[int]) -> tuple[int, ...]:
    if isinstance(values, str):
        raise OptionTypeError(f"{name} must hold token ids, not text")
    try:
        found = tuple(operator.index(value) for value in values)
    except TypeError as error:
        raise OptionTypeError(f"{name} must hold whole numbers: {error}") from None
    if any(value < 0 for value in found):
        raise OptionValueError(f"{name} holds a negative token id")
    return found
