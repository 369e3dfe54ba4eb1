"""Speculation against plain decoding: the same prompts in turns, tokens a second of each.

Every pair of runs must give the same tokens. Takes opened sessions; knows no bars.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from contest.quiet import Disturbance

from qeff.generate import Engine, Result, SamplingParams, SpeculationConfig
from qeff.generate.drafting import Drafting
from qeff.runtime import Session


@dataclass(frozen=True)
class Guesses:
    """One prompt: medians of tokens a second after the first, and how drafts did."""

    name: str
    plain_tok_s: float
    guessed_tok_s: float
    acceptance: float
    num_tokens: int
    others: float  # the most that other processes took of the machine

    @property
    def ratio(self) -> float:
        return self.guessed_tok_s / self.plain_tok_s


@dataclass(frozen=True)
class Kind:
    """How to guess."""

    config: SpeculationConfig
    draft: Session | None = None
    num_tokens: tuple[int | None, int | None] = (None, None)  # of the two tokenizers


def measure(
    session: Session, kind: Kind, name: str, prompt: Sequence[int], num_new: int, repeats: int
) -> Guesses:
    """One prompt, plain and guessed in turns."""
    speeds: dict[bool, list[float]] = {False: [], True: []}
    acceptance, shares = [], []
    tokens: tuple[int, ...] | None = None
    for _ in range(repeats):
        for is_guessed in (False, True):
            with Disturbance() as others:
                result = _run(session, kind if is_guessed else None, prompt, num_new)
            assert tokens in (None, result.token_ids), f"{name}: guessing changed the tokens"
            tokens = result.token_ids
            speeds[is_guessed].append(result.decode_tokens_per_s)
            shares.append(others.share)
            if is_guessed:
                acceptance.append(result.acceptance)
    return Guesses(
        name,
        statistics.median(speeds[False]),
        statistics.median(speeds[True]),
        statistics.median(acceptance),
        len(tokens or ()),
        max(shares),
    )


def overall(found: Sequence[Guesses]) -> float:
    """The ratio of all prompts together, by the time that all their tokens take."""
    plain = sum(each.num_tokens / each.plain_tok_s for each in found)
    return plain / sum(each.num_tokens / each.guessed_tok_s for each in found)


def _run(session: Session, kind: Kind | None, prompt: Sequence[int], num_new: int) -> Result:
    drafting = None
    if kind is not None:
        drafting = Drafting.start(
            kind.config, session.caps, draft=kind.draft, num_tokens=kind.num_tokens
        )
    engine = Engine(session, reuse_prefixes=False, drafting=drafting)
    params = SamplingParams(max_tokens=num_new, ignore_eos=True)
    return engine.generate([list(prompt)], params)[0]
