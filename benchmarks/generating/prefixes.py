"""Requests that share a long beginning: how often it is computed, and what the later ones wait.

Takes an opened session; knows no peers and no bars.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from qeff.generate import Engine, Request, SamplingParams
from qeff.runtime import Session


@dataclass(frozen=True)
class Prefixes:
    """What came of it; times are medians."""

    num_requests: int
    num_shared: int
    num_suffix: int
    num_run_together: int  # prompt tokens that all requests at once took
    num_run_in_turn: int  # and one after another
    shared_ttft_s: float  # of the later ones
    suffix_ttft_s: float  # of the suffixes without the shared part
    whole_ttft_s: float  # of everything, nothing reused

    @property
    def ratio(self) -> float:
        return self.shared_ttft_s / self.suffix_ttft_s


def measure(
    session: Session, tokens: Sequence[int], num_requests: int, num_shared: int, num_suffix: int
) -> Prefixes:
    """One after another, so that a time is a request's own; then all at once."""
    shared = list(tokens[:num_shared])
    rest = tokens[num_shared:]
    suffixes = [list(rest[i * num_suffix : (i + 1) * num_suffix]) for i in range(num_requests)]
    assert len(suffixes[-1]) == num_suffix, "the text is too short"
    one = SamplingParams(max_tokens=1)
    prompts = [shared + suffix for suffix in suffixes]

    plain = Engine(session, reuse_prefixes=False)
    suffix_s = [plain.generate([suffix], one)[0].timings.ttft_s for suffix in suffixes]
    whole_s = [plain.generate([prompt], one)[0].timings.ttft_s for prompt in prompts[:3]]
    in_turn = Engine(session)
    shared_s = [in_turn.generate([prompt], one)[0].timings.ttft_s for prompt in prompts][1:]
    together = Engine(session)
    for prompt in prompts:
        together.add(Request(tuple(prompt), one))
    while together.has_work:
        together.step()
    return Prefixes(
        num_requests,
        num_shared,
        num_suffix,
        together.stats.num_step_tokens,
        in_turn.stats.num_step_tokens,
        statistics.median(shared_s),
        statistics.median(suffix_s),
        statistics.median(whole_s),
    )
