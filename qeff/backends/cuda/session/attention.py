"""Attention over the paged cache of a layer: which kernels a step takes.

Where every sequence has one token, one launch does all. Few queries have a program for each token
and part of its rows; the tokens of longer spans are worked on in tiles. ``deterministic`` takes
the tiles for every step: what a query sees is summed in the same order whatever is beside it.
"""

from __future__ import annotations

import torch

from qeff.backends.cuda.session.attention_launch import (
    Call,
    few_plan,
    launch_few,
    launch_many,
    launch_rope_write,
    many_plan,
)
from qeff.backends.cuda.session.attention_spec import AttentionSpec, Rope, Work
from qeff.backends.cuda.session.cache import LayerCache
from qeff.backends.cuda.session.kernels.attend_few import FUSED, SPANS, TOKENS
from qeff.backends.cuda.session.step_info import StepInfo

__all__ = ["AttentionSpec", "Rope", "Work", "attend"]

FEW_TOKENS = 32  # steps of no more tokens take a program for each


def attend(
    spec: AttentionSpec,
    qkv: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None],
    cache: LayerCache,
    info: StepInfo,
    out: torch.Tensor,
    work: Work,
    *,
    deterministic: bool = False,
) -> None:
    """Write k and v [T, kv heads, dim] into the cache, and attend q [T or R, heads, dim] over it.

    Dims lie side by side, other strides are free. Without k and v nothing is written. ``out``
    [T or R, heads, value_dim] is contiguous. The rows of a step with ``is_decode`` and as many
    rows as tokens are the tokens in order.
    """
    q, k, v = qkv
    assert (k is None) == (v is None), "keys and values come together"
    assert out.is_contiguous(), "rows of the result lie one behind the other"
    call = Call(spec, q, k, v, cache, info, out, work)
    is_whole = not spec.by_row or info.num_rows == info.num_tokens
    if info.is_decode and is_whole and k is not None and not deterministic:
        launch_few(call, FUSED, few_plan(call, FUSED))
        return
    _write(call)
    if not call.num_queries:
        return
    if deterministic:
        launch_many(call, many_plan(call), least=1)
    elif spec.by_row or call.num_queries <= FEW_TOKENS or info.is_decode:
        launch_few(call, TOKENS, few_plan(call, TOKENS))
    elif info.num_spans == 1:
        launch_many(call, many_plan(call), least=1)
    else:
        # A tile for one token is mostly empty: spans of one token go another way.
        launch_many(call, many_plan(call), least=2)
        launch_few(call, SPANS, few_plan(call, SPANS))


def _write(call: Call) -> None:
    has_kv = call.k is not None and call.info.num_tokens > 0
    has_q = call.turns_queries and call.num_queries > 0
    if has_kv and has_q and not call.spec.by_row:
        launch_rope_write(call, has_q=True, has_kv=True)
        return
    if has_kv:
        launch_rope_write(call, has_q=False, has_kv=True)
    if has_q:
        launch_rope_write(call, has_q=True, has_kv=False)
