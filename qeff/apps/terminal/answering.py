"""Answers on the terminal: text on stdout as it is made, timings on stderr, or one JSON object.

Several prompts are each printed above their text, in their order; several texts of one prompt are
numbered.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qeff.apps.terminal.prompts import read_prompts
from qeff.apps.terminal.running import setup_of, with_draft
from qeff.apps.terminal.sampling import constraint_of, sampling_params

if TYPE_CHECKING:
    from qeff.apps.answers import Answers
    from qeff.apps.opening import Setup
    from qeff.container import Container
    from qeff.generate import Constraint, SamplingParams
    from qeff.generate.speculation.governor import SpeculationStats


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that a command line asks of the engine."""

    prompts: Sequence[str]
    params: SamplingParams
    constraint: Constraint | None
    setup: Setup


def read_asked(args: argparse.Namespace) -> Asked:
    """What the words ask for, checked before any work is done."""
    return Asked(read_prompts(args), sampling_params(args), constraint_of(args), setup_of(args))


def answer(
    args: argparse.Namespace, container: Container, asked: Asked, *, build_s: float = 0.0
) -> int:
    """Open the container, answer all prompts and print what was asked for."""
    from qeff.apps.answers import Answerer, deaf
    from qeff.apps.report import report
    from qeff.apps.streaming import InOrder

    asked = replace(asked, setup=with_draft(args, asked.setup, container.manifest.options))
    began = time.perf_counter()
    with Answerer(container, setup=asked.setup) as answerer:
        load_s = time.perf_counter() - began
        prompts = asked.prompts
        ids = [answerer.encode(prompt, chat=args.chat, system=args.system) for prompt in prompts]
        listen = deaf if args.json else InOrder(prompts)
        answers = answerer.run(ids, [asked.params] * len(ids), listen, asked.constraint)
        if args.json:
            seconds = {"build_s": build_s, "load_s": load_s}
            print(json.dumps(report(answerer, prompts, answers, seconds), ensure_ascii=False))
            return 0
    args.screen.note(summary(answers))
    return 0


def summary(answers: Answers) -> str:
    """The timings in one line."""
    num = len(answers.outputs)
    parts = [f"time to first token {answers.ttft_s:.2f} s" + (" (mean)" if num > 1 else "")]
    if answers.decode_tokens_per_s:
        each = " per sequence" if num > 1 else ""
        parts.append(f"{answers.decode_tokens_per_s:.1f} tokens/s{each}")
    unit = "token" if answers.num_tokens == 1 else "tokens"
    parts.append(f"{answers.num_tokens} {unit} in {answers.total_s:.2f} s")
    if answers.speculation is not None:
        parts.append(acceptance(answers.speculation))
    if answers.num_reused_tokens:
        parts.append(f"{answers.num_reused_tokens} prompt tokens reused")
    return ", ".join(parts)


def acceptance(stats: SpeculationStats) -> str:
    """What became of guesses, in a few words."""
    if not stats.num_drafted:
        return "nothing guessed"
    return (
        f"{stats.acceptance_rate:.0%} of {stats.num_drafted} guessed tokens right"
        f" ({stats.mean_accepted:.1f} a step)"
    )
