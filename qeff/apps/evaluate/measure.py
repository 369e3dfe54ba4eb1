"""Evaluation itself: every window through every phase, step by step, side by side.

Only the logits of one step are in memory at a time, whatever the length of the text; what is kept
of a token is its scores. Knows nothing of how containers came to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff.apps.evaluate.divergence import Scores, score
from qeff.apps.evaluate.lane import Lane, Phase, check_vocabulary
from qeff.apps.evaluate.windows import Window
from qeff.core.errors import RequestError
from qeff.core.progress import Event, Progress, silent


@dataclass(frozen=True, slots=True)
class Finding:
    """The scores of one phase over the whole text, in its order."""

    phase: Phase
    nll: np.ndarray
    kl: np.ndarray | None
    is_same_top: np.ndarray | None
    tokens_per_s: float

    @property
    def perplexity(self) -> float:
        return math.exp(float(self.nll.mean()))

    @property
    def perplexity_error(self) -> float:
        """One standard error of the perplexity, taking tokens as independent."""
        if len(self.nll) < 2:
            return 0.0
        return self.perplexity * float(self.nll.std(ddof=1)) / math.sqrt(len(self.nll))

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "phase": self.phase.name,
            "target": self.phase.target,
            "precision": self.phase.precision,
            "same_as": self.phase.same_as,
            "perplexity": self.perplexity,
            "perplexity_error": self.perplexity_error,
            "tokens_scored": len(self.nll),
            "tokens_per_s": round(self.tokens_per_s, 3),
            "kl_nats": None,
            "top1_agreement": None,
        }
        if self.kl is not None and self.is_same_top is not None:
            found["kl_nats"] = {
                "mean": float(self.kl.mean()),
                "median": float(np.median(self.kl)),
                "p99": float(np.quantile(self.kl, 0.99)),
                "max": float(self.kl.max()),
            }
            found["top1_agreement"] = float(self.is_same_top.mean())
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """The token ids of a text and its windows; ``bos`` stands first in each, if it is given."""

    ids: np.ndarray  # int64
    windows: Sequence[Window]
    bos: int | None = None

    @property
    def longest(self) -> int:
        return max(window.stop - window.start for window in self.windows)

    def tokens(self, window: Window) -> np.ndarray:
        """What a window runs."""
        tokens = self.ids[window.start : window.stop].copy()
        if self.bos is not None:
            tokens[0] = self.bos
        return tokens


def evaluate(
    phases: Sequence[Phase],
    text: Passage,
    *,
    has_reference: bool,
    threads: int | None = None,
    progress: Progress = silent,
) -> list[Finding]:
    """Score a text by every phase; with ``has_reference`` the first is what others are held to."""
    assert phases and text.windows, "there is nothing to evaluate"
    with ExitStack() as stack:
        lanes = []
        for phase in phases:
            if phase.same_as is None:
                lane = Lane(phase, text.longest, threads)
                stack.callback(lane.close)
                lanes.append(lane)
        check_vocabulary(lanes, text.ids)
        parts: list[list[Scores]] = [[] for _ in lanes]
        for done, window in enumerate(text.windows):
            progress(Event("evaluate", done, len(text.windows), "windows"))
            for found in _run_window(lanes, text.tokens(window), window, has_reference):
                for part, scores in zip(parts, found, strict=True):
                    part.append(scores)
        made = {lane.phase.name: _join(lane, part) for lane, part in zip(lanes, parts, strict=True)}
    return [_finding(phase, made) for phase in phases]


def _run_window(
    lanes: Sequence[Lane], tokens: np.ndarray, window: Window, has_reference: bool
) -> list[list[Scores]]:
    """The scores of each step of a window, for each lane."""
    first = window.first - window.start  # the first token that is scored; its row is one before
    count = len(tokens) - 1  # nothing is asked of the last token
    width = min(lane.max_tokens for lane in lanes)
    found = []
    for start in range(0, count, width):
        stop = min(start + width, count)
        rows = np.arange(max(start, first - 1), stop) - start
        logits = [lane.step(tokens[start:stop], start, rows) for lane in lanes]
        if len(rows):
            targets = tokens[start + rows + 1]
            _check_finite(lanes, logits)
            found.append(score(logits, targets, has_reference=has_reference))
    return found


def _check_finite(lanes: Sequence[Lane], many_logits: Sequence[np.ndarray]) -> None:
    for lane, logits in zip(lanes, many_logits, strict=True):
        if not np.isfinite(logits).all():
            raise RequestError(
                f"the phase {lane.phase.name} gives logits that are not finite",
                "its precision may be too small for this model; compile with another",
            )


def _join(lane: Lane, parts: Sequence[Scores]) -> Finding:
    has_reference = parts[0].kl is not None
    return Finding(
        phase=lane.phase,
        nll=np.concatenate([part.nll for part in parts]),
        kl=np.concatenate([part.kl for part in parts]) if has_reference else None,
        is_same_top=np.concatenate([part.is_same_top for part in parts]) if has_reference else None,
        tokens_per_s=lane.tokens_per_s,
    )


def _finding(phase: Phase, made: dict[str, Finding]) -> Finding:
    """What a phase found; one that equals another is told by the other's numbers."""
    other = made[phase.same_as or phase.name]
    return Finding(phase, other.nll, other.kl, other.is_same_top, other.tokens_per_s)
