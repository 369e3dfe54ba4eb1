"""What ``generate`` returns: QEfficient's result types, with the same fields.

Times are seconds. ``decode_perf`` and ``total_perf`` are tokens per second of one sequence, as
documented there; the printed form multiplies by the number of sequences that ran side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class PerfMetrics:
    """How long it took."""

    prefill_time: float  # seconds to the first token, mean over prompts
    decode_perf: float  # tokens/s of one sequence after its first token
    total_perf: float  # tokens/s of one sequence, prefill included
    total_time: float  # seconds from the first prompt to the last token


@dataclass(frozen=True, slots=True, repr=False)
class CloudAI100ExecInfo:
    """Texts, token ids and timings of one ``generate`` call, one entry for each prompt."""

    batch_size: int
    generated_texts: list[str]
    generated_ids: np.ndarray  # int64 [prompts, max(ctx_len, longest)], padded on the right
    perf_metrics: PerfMetrics

    def __repr__(self) -> str:
        perf = self.perf_metrics
        return (
            f"time to first token: {perf.prefill_time:.3f} s (mean over prompts)\n"
            f"decode: {perf.decode_perf * self.batch_size:.2f} tokens/s\n"
            f"total: {perf.total_perf * self.batch_size:.2f} tokens/s\n"
            f"elapsed: {perf.total_time:.3f} s"
        )
