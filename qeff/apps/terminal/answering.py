"""Answers on the terminal: text on stdout as it is made, timings on stderr, or one JSON object.

Several prompts are each printed above their text, in their order.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qeff.apps.answers import Answers
    from qeff.container import Container
    from qeff.generate import SamplingParams

_NAMES = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """How tokens are chosen, checked before any work is done."""
    from qeff.generate import SamplingParams

    given = {name: getattr(args, name) for name in _NAMES if getattr(args, name) is not None}
    return SamplingParams(
        max_tokens=args.generation_len,
        stop=tuple(args.stop or ()),
        ignore_eos=args.ignore_eos,
        **given,
    )


def answer(
    args: argparse.Namespace,
    container: Container,
    prompts: Sequence[str],
    params: SamplingParams,
    *,
    build_s: float = 0.0,
) -> int:
    """Open the container, answer all prompts and print what was asked for."""
    from qeff.apps.answers import Answerer, deaf
    from qeff.apps.streaming import InOrder

    began = time.perf_counter()
    with Answerer(container, threads=args.threads) as answerer:
        load_s = time.perf_counter() - began
        ids = [answerer.encode(prompt, chat=args.chat, system=args.system) for prompt in prompts]
        answers = answerer.run(ids, [params] * len(ids), deaf if args.json else InOrder(prompts))
    if args.json:
        print(json.dumps(report(container, prompts, answers, build_s, load_s), ensure_ascii=False))
        return 0
    args.screen.note(summary(answers))
    return 0


def summary(answers: Answers) -> str:
    """The timings in one line."""
    num = len(answers.results)
    parts = [f"time to first token {answers.ttft_s:.2f} s" + (" (mean)" if num > 1 else "")]
    if answers.decode_tokens_per_s:
        each = " per sequence" if num > 1 else ""
        parts.append(f"{answers.decode_tokens_per_s:.1f} tokens/s{each}")
    unit = "token" if answers.num_tokens == 1 else "tokens"
    parts.append(f"{answers.num_tokens} {unit} in {answers.total_s:.2f} s")
    return ", ".join(parts)


def report(
    container: Container, prompts: Sequence[str], answers: Answers, build_s: float, load_s: float
) -> dict[str, Any]:
    """What ``--json`` prints."""
    manifest = container.manifest
    return {
        "model": manifest.model.name,
        "target": manifest.target,
        "precision": dict(manifest.precision),
        "container": str(container.path),
        "results": [
            {
                "prompt": prompt,
                "text": result.text,
                "token_ids": list(result.token_ids),
                "prompt_token_ids": list(result.prompt),
                "num_prompt_tokens": len(result.prompt),
                "num_tokens": len(result.token_ids),
                "finish": str(result.finish),
                "queue_s": round(result.timings.queue_s, 6),
                "time_to_first_token_s": round(result.timings.prefill_s, 6),
                "decode_s": round(result.timings.decode_s, 6),
                "decode_tokens_per_s": round(result.decode_tokens_per_s, 3),
            }
            for prompt, result in zip(prompts, answers.results, strict=True)
        ],
        "totals": {
            "batch_size": answers.batch_size,
            "num_tokens": answers.num_tokens,
            "build_s": round(build_s, 6),
            "load_s": round(load_s, 6),
            "generate_s": round(answers.total_s, 6),
            "tokens_per_s": round(answers.num_tokens / answers.total_s, 3),
        },
    }
