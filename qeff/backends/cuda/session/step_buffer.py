"""A step's description on the device: everything in one piece of memory, sent by one copy.

The host's side is pinned and has a few places in turn, so that a step can be described while the
one before is on its way. Where an array lies depends on the sizes alone, so that steps of equal
sizes find theirs at equal addresses. Knows nothing of programs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from qeff.backends.cuda.session.step_info import StepInfo
from qeff.runtime.session import CHOICE

TURNS = 3  # host places
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many of everything a description has room for."""

    tokens: int
    spans: int
    rows: int
    width: int  # blocks of a table
    words: int = 0  # of each token's ancestors; 0: there are none
    chooses: bool = False

    def arrays(self) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
        """Every array: its type and shape."""
        i64, i32 = np.dtype(np.int64), np.dtype(np.int32)
        found: dict[str, tuple[np.dtype, tuple[int, ...]]] = {
            "tokens": (i64, (self.tokens,)),
            "rows": (i64, (self.rows,)),
            "positions": (i32, (self.tokens,)),
            "owners": (i32, (self.tokens,)),
            "slots": (i32, (self.tokens,)),
            "starts": (i32, (self.spans + 1,)),
            "firsts": (i32, (self.spans,)),
            "tables": (i32, (self.spans, self.width)),
        }
        if self.words:
            found["ancestors"] = (i64, (self.tokens, self.words))
        if self.chooses:
            found["choices"] = (np.dtype(np.uint8), (self.rows, CHOICE.itemsize))
        return found

    def places(self) -> tuple[dict[str, int], int]:
        """Where each array begins, and the bytes of all."""
        places, end = {}, 0
        for name, (dtype, shape) in self.arrays().items():
            places[name] = end
            end += -(-dtype.itemsize * int(np.prod(shape, dtype=np.int64)) // _ALIGN) * _ALIGN
        return places, end


_TORCH = {"i8": torch.int64, "i4": torch.int32, "u1": torch.uint8}


_MAX_KNOWN = 256


@dataclass(slots=True)
class _Known:
    num_bytes: int
    host: list[dict[str, np.ndarray] | None]  # of each turn
    device: dict[str, torch.Tensor] | None = None


def _arrays(memory: np.ndarray, sizes: Sizes) -> dict[str, np.ndarray]:
    places, _ = sizes.places()
    return {
        name: memory[places[name] :][: dtype.itemsize * int(np.prod(shape, dtype=np.int64))]
        .view(dtype)
        .reshape(shape)
        for name, (dtype, shape) in sizes.arrays().items()
    }


class StepBuffer:
    """Memory for descriptions of up to ``num_bytes``, on the device and beside it."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self.num_bytes, self.device = num_bytes, device
        is_gpu = device.type == "cuda"
        self._memory = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._host = [
            torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=is_gpu) for _ in range(TURNS)
        ]
        self._bytes = [tensor.numpy() for tensor in self._host]
        self._sent: list[torch.cuda.Event | None] = [None] * TURNS
        self._turn = 0
        self._sizes: dict[Sizes, _Known] = {}

    def holds(self, sizes: Sizes) -> bool:
        """Whether a description of these sizes fits."""
        return self._known(sizes).num_bytes <= self.num_bytes

    def next_host(self, sizes: Sizes) -> dict[str, np.ndarray]:
        """Host arrays to fill; what they held was sent."""
        self._turn = (self._turn + 1) % TURNS
        event = self._sent[self._turn]
        if event is not None:
            event.synchronize()
        known = self._known(sizes)
        arrays = known.host[self._turn]
        if arrays is None:
            arrays = known.host[self._turn] = _arrays(self._bytes[self._turn], sizes)
        return arrays

    def send(self, sizes: Sizes) -> None:
        """Copy what was filled last to the device; returns at once."""
        end = self._known(sizes).num_bytes
        self._memory[:end].copy_(self._host[self._turn][:end], non_blocking=True)
        if self.device.type == "cuda":
            event = self._sent[self._turn]
            if event is None:
                event = self._sent[self._turn] = torch.cuda.Event()
            event.record()

    def _known(self, sizes: Sizes) -> _Known:
        """What is computed once for steps of one size; a few sizes make up most steps."""
        known = self._sizes.get(sizes)
        if known is None:
            if len(self._sizes) >= _MAX_KNOWN:
                self._sizes.clear()
            known = self._sizes[sizes] = _Known(sizes.places()[1], [None] * TURNS)
        return known

    def view(self, sizes: Sizes) -> dict[str, torch.Tensor]:
        """The device's arrays."""
        known = self._known(sizes)
        if known.device is None:
            known.device = self._view(sizes)
        return known.device

    def _view(self, sizes: Sizes) -> dict[str, torch.Tensor]:
        places, _ = sizes.places()
        found = {}
        for name, (dtype, shape) in sizes.arrays().items():
            count = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            part = self._memory[places[name] : places[name] + count]
            found[name] = part.view(_TORCH[dtype.str[1:]]).reshape(shape)
        return found


def info_of(
    arrays: dict[str, torch.Tensor], sizes: Sizes, longest: int, is_decode: bool
) -> StepInfo:
    """The description that kernels read."""
    return StepInfo(
        num_tokens=sizes.tokens,
        num_spans=sizes.spans,
        num_rows=sizes.rows,
        tokens=arrays["tokens"],
        positions=arrays["positions"],
        owners=arrays["owners"],
        slots=arrays["slots"],
        starts=arrays["starts"],
        firsts=arrays["firsts"],
        tables=arrays["tables"],
        rows=arrays["rows"],
        ancestors=arrays.get("ancestors"),
        longest=longest,
        is_decode=is_decode,
    )
