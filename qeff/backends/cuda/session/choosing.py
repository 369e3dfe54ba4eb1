"""Tokens from logits on the device, each row as its choice says (``runtime.session.CHOICE``).

Choices are on the device too, as the bytes of their array, so that a captured graph can be played
again with others. Knows nothing of programs or sequences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton

from qeff.backends.cuda.session.kernels import borders
from qeff.backends.cuda.session.kernels import choose as kernels
from qeff.backends.cuda.session.launch import settings
from qeff.runtime.session import CHOICE

LISTED = 16384  # logits of a row that are copied together; with more, whole rows are read again


class Chooser:
    """Memory for choosing the tokens of up to ``max_rows`` rows, and the kernels' launches."""

    def __init__(
        self, max_rows: int, vocab_size: int, device: torch.device, listed: int = LISTED
    ) -> None:
        pieces = triton.cdiv(vocab_size, kernels.PIECE)
        self.device = device
        self.vocab_size = vocab_size
        self.choices = torch.zeros((max_rows, CHOICE.itemsize), dtype=torch.uint8, device=device)
        self.tokens = torch.full((max_rows,), -1, dtype=torch.int64, device=device)
        self._maxima = torch.zeros((max_rows, pieces), dtype=torch.float32, device=device)
        self._places = torch.zeros((max_rows, pieces), dtype=torch.int32, device=device)
        self._sums = torch.zeros((max_rows, pieces), dtype=torch.float64, device=device)
        self._borders = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._counts = torch.zeros(max_rows, dtype=torch.int32, device=device)
        parts = triton.cdiv(pieces, kernels.PART)
        sides = borders.SIDES
        self._cuts = torch.zeros((max_rows, sides), dtype=torch.int32, device=device)
        self._weighed = torch.zeros((max_rows, parts, sides), dtype=torch.float64, device=device)
        self._near = torch.zeros((max_rows, listed), dtype=torch.float32, device=device)

    @staticmethod
    def memory_of(max_rows: int, vocab_size: int) -> int:
        """Bytes that a chooser of this size takes."""
        pieces = triton.cdiv(vocab_size, kernels.PIECE)
        parts = triton.cdiv(pieces, kernels.PART)
        sides = borders.SIDES * (4 + parts * 8)
        return max_rows * (CHOICE.itemsize + 16 + pieces * 16 + sides + LISTED * 4)

    def put(self, choices: np.ndarray) -> None:
        """Copy choices [R] to the device; the first R rows of :attr:`choices` are theirs."""
        assert choices.dtype == CHOICE and len(choices) <= len(self.choices)
        if len(choices):
            data = np.ascontiguousarray(choices).view(np.uint8).reshape(len(choices), -1)
            self.choices[: len(choices)].copy_(torch.from_numpy(data))

    def choose(
        self, logits: torch.Tensor, *, all_greedy: bool = False, is_filtered: bool = True
    ) -> torch.Tensor:
        """The tokens i64 [R] of logits f32 [R, vocab] by the first R choices; on the device.

        ``all_greedy`` says that no row has a temperature above 0, and ``is_filtered=False`` that
        no row has top_k, top_p or min_p: either takes less work.
        """
        num_rows, vocab_size = logits.shape
        assert vocab_size == self.vocab_size and logits.dtype == torch.float32
        assert logits.stride(1) == 1, "a row's logits lie side by side"
        tokens = self.tokens[:num_rows]
        if not num_rows:
            return tokens
        pieces = self._maxima.shape[1]
        parts = triton.cdiv(pieces, kernels.PART)
        shape = {"size": vocab_size, "pieces": pieces, "stride": logits.stride(0)}
        known = {"PIECES": triton.next_power_of_2(pieces), **settings(self.device)}
        kernels.find_maxima[(num_rows, parts)](
            logits, self._maxima, self._places, **shape, num_warps=4, **settings(self.device)
        )
        if all_greedy:
            kernels.take_largest[(num_rows,)](
                self.choices.view(torch.float32),
                self._maxima,
                self._places,
                tokens,
                pieces=pieces,
                num_warps=1,
                **known,
            )
            return tokens
        words = self.choices.view(torch.float32)
        ints = self.choices.view(torch.int32)
        rows = (logits, words, ints, self._maxima)
        summed = (*rows, self._borders, self._sums)
        kernels.sum_weights[(num_rows, parts)](*summed, **shape, KEPT=False, num_warps=4, **known)
        if is_filtered:
            self._find_borders(rows, (num_rows, parts), shape, known)
            kernels.sum_weights[(num_rows, parts)](
                *summed, **shape, KEPT=True, num_warps=4, **known
            )
        kernels.draw[(num_rows,)](
            logits,
            words,
            self.choices.view(torch.int64),
            ints,
            self._maxima,
            self._places,
            self._borders,
            self._sums,
            tokens,
            **shape,
            FILTERED=is_filtered,
            num_warps=4,
            **known,
        )
        return tokens

    def _find_borders(
        self,
        rows: tuple[torch.Tensor, ...],
        grid: tuple[int, int],
        shape: dict[str, int],
        known: dict[str, Any],
    ) -> None:
        whole = {**shape, **known}
        borders.cut_rows[grid[:1]](*rows, self._cuts, self._counts, **whole, num_warps=8)
        borders.weigh_sides[grid](*rows, self._cuts, self._weighed, **whole, num_warps=4)
        found = (self._cuts, self._weighed, self._sums, self._counts, self._near)
        whole["PARTS"] = triton.next_power_of_2(grid[1])
        whole["LISTED"] = self._near.shape[1]
        borders.list_section[grid](*rows, *found, **whole, num_warps=4)
        borders.find_borders[grid[:1]](
            *rows, *found, self._borders, **whole, parts=grid[1], num_warps=16
        )
