"""What ``--json`` prints: every answer with all that is known of it, as plain JSON values.

Knows nothing of the command line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qeff.apps.answers import Answerer, Answers
    from qeff.generate import Result, Text
    from qeff.generate.request import Choice


def report(
    answerer: Answerer, prompts: Sequence[str], answers: Answers, seconds: Mapping[str, float]
) -> dict[str, Any]:
    """The model, the results and the totals; ``seconds`` are of what came before the answers."""
    manifest = answerer.container.manifest
    return {
        "model": manifest.model.name,
        "target": manifest.target,
        "precision": dict(manifest.precision),
        "container": str(answerer.container.path),
        "results": [
            {"prompt": prompt, **_result(result, answerer.text)}
            for prompt, result in zip(prompts, answers.results, strict=True)
        ],
        "totals": {
            "batch_size": answers.batch_size,
            "num_tokens": answers.num_tokens,
            "num_reused_tokens": answers.num_reused_tokens,
            **{name: round(value, 6) for name, value in seconds.items()},
            "generate_s": round(answers.total_s, 6),
            "tokens_per_s": round(answers.num_tokens / answers.total_s, 3),
            "speculation": _speculation(answers),
        },
    }


def _result(result: Result, text: Text) -> dict[str, Any]:
    found = {
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
        "num_reused_tokens": result.num_cached_tokens,
        "num_drafted": result.num_drafted,
        "num_accepted": result.num_accepted,
        "num_forced": result.num_forced,
    }
    if result.cumulative_logprob is not None:
        found["cumulative_logprob"] = _number(result.cumulative_logprob)
    for name in ("logprobs", "prompt_logprobs"):
        choices = getattr(result, name)
        if choices is not None:
            found[name] = [_choice(choice, text) for choice in choices]
    if result.alternatives:
        # Of one request: the prompt is said once.
        hidden = ("prompt_token_ids", "num_prompt_tokens", "prompt_logprobs")
        others = [_result(other, text) for other in result.alternatives]
        found["alternatives"] = [
            {name: value for name, value in other.items() if name not in hidden} for other in others
        ]
    return found


def _choice(choice: Choice, text: Text) -> dict[str, Any]:
    top = [_token(token, logprob, text) for token, logprob in choice.top]
    return {**_token(choice.token, choice.logprob, text), "top": top}


def _token(token: int, logprob: float | None, text: Text) -> dict[str, Any]:
    written = text.decode([token], skip_special_tokens=False)
    return {"token_id": token, "token": written, "logprob": _number(logprob)}


def _number(value: float | None) -> float | None:
    """A number that JSON can write; there is none for infinity."""
    return round(value, 6) if value is not None and math.isfinite(value) else None


def _speculation(answers: Answers) -> dict[str, Any] | None:
    stats = answers.speculation
    if stats is None:
        return None
    return {
        **asdict(stats),
        "acceptance_rate": round(stats.acceptance_rate, 6),
        "mean_accepted": round(stats.mean_accepted, 6),
        "proposal_s": round(stats.proposal_s, 6),
    }
