"""What kernels know of a step: whose each token is and where its keys and values go.

All tensors stay at their place from step to step, so that a captured graph can be replayed; only
their first entries count. Padding tokens belong to a sequence of their own, whose blocks nobody
reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(slots=True)
class StepInfo:
    """Device arrays of a step of ``num_tokens`` tokens of ``num_spans`` sequences."""

    num_tokens: int
    num_spans: int
    num_rows: int
    tokens: torch.Tensor  # i64 [T]
    positions: torch.Tensor  # i32 [T]
    owners: torch.Tensor  # i32 [T], the span of each token
    slots: torch.Tensor  # i32 [T], row in its sequence's cache; row r is in block r // block_len
    starts: torch.Tensor  # i32 [S + 1], first token of each span
    firsts: torch.Tensor  # i32 [S], row of the span's first token: rows before were there already
    tables: torch.Tensor  # i32 [S, blocks of the longest sequence]
    rows: torch.Tensor  # i64 [R], tokens whose logits are wanted
    # i64 [T, words] or None: bit i % 64 of word i // 64 says that the token sees token i of its
    # own span (itself included); None: a token sees all tokens of its span up to itself.
    ancestors: torch.Tensor | None
    longest: int  # an upper bound of cache rows that a token of this step sees, known on the host
    is_decode: bool  # every span has exactly one token
