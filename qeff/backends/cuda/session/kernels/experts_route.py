"""The best experts of a token and their shares, from a router's scores, in one launch.

Scores may go through a softmax or a sigmoid first, and the best ones through a softmax or a
division by their sum afterwards. Of equal scores the first wins. Knows nothing of experts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from qeff.backends.cuda.session.kernels.gated import sigmoid
from qeff.backends.cuda.session.launch import release, settings, wait

BEFORE = ("none", "softmax", "sigmoid")
AFTER = ("none", "softmax", "sum")


@triton.jit
def _softmax(x):
    """Of f32; entries of −inf have no share."""
    y = tl.exp(x - tl.max(x, 0))
    return y / tl.sum(y, 0)


@triton.jit
def _route(
    scores, index, weight, experts, score_stride,
    EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, ROOM: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    release(PDL)
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    slot = tl.arange(0, ROOM)
    nothing = float("-inf")
    wait(PDL)
    place = scores + token * score_stride + expert
    x = tl.load(place, mask=expert < experts, other=nothing).to(tl.float32)
    if BEFORE == "softmax":
        x = _softmax(x)
    elif BEFORE == "sigmoid":
        x = sigmoid(x)
    x = tl.where(expert < experts, x, nothing)
    best = tl.full([ROOM], nothing, tl.float32)
    for number in tl.static_range(CHOSEN):
        top = tl.max(x, 0)
        # What is no number is equal to nothing.
        first = tl.minimum(tl.min(tl.where(x == top, expert, EXPERTS), 0), experts - 1)
        best = tl.where(slot == number, top, best)
        tl.store(index + token * CHOSEN + number, first)
        x = tl.where(expert == first, nothing, x)
    if AFTER == "softmax":
        best = _softmax(best)
    elif AFTER == "sum":
        best /= tl.sum(tl.where(slot < CHOSEN, best, 0.0), 0)
    tl.store(weight + token * CHOSEN + slot, best, mask=slot < CHOSEN)


def route(
    scores: torch.Tensor, index: torch.Tensor, weight: torch.Tensor, before: str, after: str
) -> None:
    """``index`` i64 and ``weight`` f32 [tokens, chosen] of scores [tokens, experts]."""
    tokens, experts = scores.shape
    chosen = index.shape[1]
    assert before in BEFORE and after in AFTER, "a way that scores go"
    assert index.shape == weight.shape == (tokens, chosen) and chosen <= experts
    assert index.is_contiguous() and weight.is_contiguous() and scores.stride(1) == 1
    if not tokens:
        return
    room = triton.next_power_of_2(experts)
    _route[(tokens,)](
        scores,
        index,
        weight,
        experts,
        scores.stride(0),
        EXPERTS=room,
        CHOSEN=chosen,
        ROOM=triton.next_power_of_2(chosen),
        BEFORE=before,
        AFTER=after,
        num_warps=1 if room <= 256 else 4,
        **settings(scores.device),
    )
