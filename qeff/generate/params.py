"""Sampling settings: how the tokens of a request are chosen, and when it ends.

A frozen value, checked when it is made, so that a bad setting or two that exclude each other are
answered before anything runs. Knows nothing of prompts, tokenizers or vocabularies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from qeff.core.errors import OptionValueError
from qeff.generate import checks

MAX_SEED = 2**64 - 1
MAX_BIAS = 100.0


# Without slots: what is derived from the settings is kept, since every step asks for it.
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when to stop; the defaults are greedy, until the model ends.

    Args:
        max_tokens: Most tokens to make; None goes on until the context is full.
        min_tokens: The model's end, stop tokens and stop strings do not count before this many.
        temperature: 0 takes the likeliest token; larger is more random.
        top_k: Only this many likeliest tokens; 0 is off.
        top_p: Only the likeliest tokens whose probabilities sum to this; 1 is off.
        min_p: Only tokens at least this fraction as likely as the likeliest; 0 is off.
        typical_p: Only the tokens whose information is nearest to what is expected, until their
            probabilities sum to this; 1 is off.
        repetition_penalty: Above 1 makes every token of prompt and output less likely.
        presence_penalty: Subtracted from the logit of each token that the output holds.
        frequency_penalty: Subtracted once for each time the output holds the token.
        logit_bias: Token id to what is added to its logit, from -100 to 100; kept as sorted pairs.
        bad_words: Texts that may not be written, also not as parts of words or by other tokens than
            the tokenizer's.
        bad_token_ids: Token sequences that may not be written: the last token of one does not come
            where the others stand at the end of prompt and output.
        seed: Equal seeds give equal tokens, alone or in a batch; None draws one.
        stop: Strings that end the text; they are not part of it.
        stop_token_ids: Tokens that end the output besides the model's own.
        ignore_eos: Go on when the model says that it is done.
        skip_special_tokens: Leave special tokens out of the text; tool calls may be marked by them.
        n: How many outputs to give.
        best_of: How many to make for that, of which the likeliest are given; None makes n.
        logprobs: With each token its log-probability and this many likeliest tokens; 0 is the
            token's own alone, None is off.
        prompt_logprobs: The same for the tokens of the prompt.
        beam_width: Beams of a beam search; 0 is off.
        length_penalty: Beams are compared by log-probability / length ** this.
        early_stopping: End a beam search as soon as there are beam_width finished beams.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    n: int = 1
    best_of: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    beam_width: int = 0
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        _check_length(self)
        _check_filters(self)
        _check_penalties(self)
        if self.seed is not None:
            checks.check_whole("seed", self.seed, 0)
            if self.seed > MAX_SEED:
                raise OptionValueError(f"seed {self.seed} does not fit 64 bits")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                checks.check_whole(name, getattr(self, name), 0)
        _check_choices(self)
        _check_beams(self)
        tidied = {
            "stop": checks.strings("stop", self.stop, "it would end every text"),
            "stop_token_ids": checks.token_ids("stop_token_ids", self.stop_token_ids),
            "logit_bias": checks.token_biases("logit_bias", self.logit_bias, MAX_BIAS),
            "bad_words": checks.strings("bad_words", self.bad_words, "it would forbid nothing"),
            "bad_token_ids": checks.token_sequences("bad_token_ids", self.bad_token_ids),
        }
        for name, value in tidied.items():
            object.__setattr__(self, name, value)

    @cached_property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @cached_property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @cached_property
    def has_adjustments(self) -> bool:
        """Whether logits change before the likeliest is looked for."""
        return bool(self.logit_bias or self.bad_token_ids or self.bad_words) or self.has_penalties

    @cached_property
    def num_choices(self) -> int:
        """How many outputs are made, of which n are given."""
        return self.best_of or self.n

    @cached_property
    def needs_logprobs(self) -> bool:
        """Whether each token's log-probability is wanted, or decides which outputs are given."""
        return self.logprobs is not None or self.num_choices > self.n

    @cached_property
    def is_free(self) -> bool:
        """Whether nothing is wanted but a token, chosen from the model's logits as they are."""
        return not (self.has_adjustments or self.needs_logprobs or self.min_tokens)

    @cached_property
    def is_plain(self) -> bool:
        """Whether nothing but the largest of the model's logits is wanted."""
        return self.is_greedy and not self.has_adjustments and not self.needs_logprobs

    def named_token_ids(self) -> Iterator[int]:
        """Every token id that a setting names; all of them must be in the vocabulary."""
        yield from self.stop_token_ids
        for token, _ in self.logit_bias:
            yield token
        for sequence in self.bad_token_ids:
            yield from sequence


def _check_length(params: SamplingParams) -> None:
    if params.max_tokens is not None:
        checks.check_whole("max_tokens", params.max_tokens, 1)
    checks.check_whole("min_tokens", params.min_tokens, 0)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise OptionValueError(
            f"min_tokens {params.min_tokens} is larger than max_tokens {params.max_tokens}"
        )
    checks.check_flag("ignore_eos", params.ignore_eos)
    checks.check_flag("skip_special_tokens", params.skip_special_tokens)


def _check_filters(params: SamplingParams) -> None:
    checks.check_number("temperature", params.temperature, 0.0, math.inf)
    checks.check_whole("top_k", params.top_k, 0)
    checks.check_fraction("top_p", params.top_p)
    checks.check_fraction("typical_p", params.typical_p)
    checks.check_number("min_p", params.min_p, 0.0, 1.0)


def _check_penalties(params: SamplingParams) -> None:
    checks.check_number("repetition_penalty", params.repetition_penalty, 0.0, math.inf)
    if params.repetition_penalty == 0:
        raise OptionValueError("repetition_penalty must be above 0", "1 turns it off")
    checks.check_number("presence_penalty", params.presence_penalty, -2.0, 2.0)
    checks.check_number("frequency_penalty", params.frequency_penalty, -2.0, 2.0)


def _check_choices(params: SamplingParams) -> None:
    checks.check_whole("n", params.n, 1)
    if params.best_of is not None:
        checks.check_whole("best_of", params.best_of, 1)
        if params.best_of < params.n:
            raise OptionValueError(f"best_of {params.best_of} is smaller than n {params.n}")
    if params.num_choices > 1 and params.is_greedy and not params.beam_width:
        name = "n" if params.best_of is None else "best_of"
        raise OptionValueError(
            f"{name} {params.num_choices} at temperature 0 would make the same output each time",
            "raise the temperature, or set beam_width",
        )


def _check_beams(params: SamplingParams) -> None:
    checks.check_whole("beam_width", params.beam_width, 0)
    checks.check_number("length_penalty", params.length_penalty, -math.inf, math.inf)
    checks.check_flag("early_stopping", params.early_stopping)
    if not params.beam_width:
        if params.length_penalty != 1 or params.early_stopping:
            name = "early_stopping" if params.early_stopping else "length_penalty"
            raise OptionValueError(f"{name} is a setting of beam search", "set beam_width")
        return
    if not params.is_greedy:
        raise OptionValueError(
            f"beam search does not sample, but temperature is {params.temperature}",
            "leave temperature at 0, or beam_width at 0",
        )
    if params.best_of is not None:
        raise OptionValueError(
            "best_of and beam_width exclude each other", "beam search gives the n best of its beams"
        )
    if params.n > params.beam_width:
        raise OptionValueError(
            f"n {params.n} is larger than beam_width {params.beam_width}", "raise beam_width"
        )
