"""Log-probabilities of tokens as OpenAI's chat answers and responses show them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from qeff.apps.server.served import Served
from qeff.generate.request import Choice

UNLIKELY = -9999.0  # OpenAI's number for a token that has no chance; JSON knows no infinity


def token_logprobs(served: Served, choices: Iterable[Choice]) -> list[dict[str, Any]]:
    """Each token with its log-probability and the likeliest tokens in its place."""
    return [
        {
            **_entry(served, choice.token, choice.logprob),
            "top_logprobs": [_entry(served, token, number) for token, number in choice.top],
        }
        for choice in choices
    ]


def finite(number: float | None) -> float:
    """A log-probability that JSON can hold."""
    return UNLIKELY if number is None or not math.isfinite(number) else max(number, UNLIKELY)


def _entry(served: Served, token: int, logprob: float | None) -> dict[str, Any]:
    return {
        "token": served.token_text(token),
        "logprob": finite(logprob),
        "bytes": list(served.token_bytes(token)),
    }
