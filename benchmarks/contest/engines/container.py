"""A compiled container of qeff, driven step by step by steps that give the likeliest token.

Prompts of all sequences go into one step, whole, and so do the tokens of a decode step. Sequence
``i`` owns the cache blocks ``i · n`` to ``(i + 1) · n``. Also compiles containers. Knows no text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qeff.container import Container
from qeff.runtime import CHOICE, GREEDY, Batch, Span, StepOutput, open_session


def versions() -> dict[str, str]:
    """What is measured here."""
    from qeff.apps.build_version import build_version

    return {"qeff": build_version()}


def compile_model(job: dict[str, Any]) -> None:
    """Compile a checkpoint to the folder ``out``, unless just that container is there already."""
    from pathlib import Path

    from qeff.apps.pipeline import build
    from qeff.core.options import CompileOptions, ExportOptions

    options = CompileOptions(
        target=job["target"],
        precision=job["precision"],
        precision_overrides=tuple((pattern, name) for pattern, name in job["overrides"]),
        prefill_seq_len=job["prompt_len"],
        ctx_len=job["ctx_len"],
        full_batch_size=job["num_sequences"],
    )
    build(job["source"], ExportOptions(continuous_batching=True), options, out=Path(job["out"]))


class Engine:
    """An opened container with room for ``num_sequences`` of ``ctx_len`` tokens."""

    def __init__(self, model: str, threads: int, ctx_len: int, num_sequences: int) -> None:
        self._session = open_session(Container.open(model), threads=threads)
        caps = self._session.caps
        if ctx_len > caps.ctx_len or num_sequences > caps.max_sequences:
            raise SystemExit(
                f"{model} takes {caps.max_sequences} sequences of {caps.ctx_len} tokens,"
                f" {num_sequences} of {ctx_len} are wanted"
            )
        per_sequence = -(-ctx_len // caps.block_len)
        self._max_step = caps.max_step_tokens
        self._session.reserve(per_sequence * num_sequences)
        self._blocks = [
            tuple(range(i * per_sequence, (i + 1) * per_sequence)) for i in range(num_sequences)
        ]
        self._at = 0
        self._decode: Batch | None = None  # a step of one token each; filled anew each time

    def start(self, prompts: Sequence[Sequence[int]], num_new: int) -> list[int]:
        """Run whole prompts; a cache block needs no clearing, since rows are written before use."""
        del num_new
        self._at = 0
        length = len(prompts[0])
        found = np.empty(0, np.int64)
        # Only a session that cannot take the whole prompt at once gets it in pieces.
        for low in range(0, length, self._max_step):
            parts = [prompt[low : low + self._max_step] for prompt in prompts]
            count = len(parts[0])
            rows = np.arange(1, len(parts) + 1) * count - 1
            output = self._step(parts, rows if low + count == length else rows[:0], is_greedy=True)
            found = output.tokens
        return found.tolist()

    def advance(self, tokens: Sequence[int]) -> list[int]:
        """Run one token of each sequence."""
        count = len(tokens)
        if self._decode is None or len(self._decode.spans) != count:
            self._decode = Batch(
                tokens=np.zeros(count, np.int64),
                positions=np.zeros(count, np.int64),
                spans=tuple(Span(i, i + 1, self._blocks[i]) for i in range(count)),
                logit_rows=np.arange(count),
                choices=np.array([GREEDY] * count, CHOICE),
            )
        self._decode.tokens[:] = tokens
        self._decode.positions[:] = self._at
        self._at += 1
        return self._session.step(self._decode).tokens.tolist()

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Run one text and give every row of logits."""
        self._at = 0
        parts = [
            tokens[low : low + self._max_step] for low in range(0, len(tokens), self._max_step)
        ]
        return np.concatenate([self._step([part], np.arange(len(part))).logits for part in parts])

    def serve(
        self, requests: Sequence[tuple[Sequence[int], int]], note: Callable[[int], None]
    ) -> None:
        """Run all requests through the generation engine, greedily, nothing reused or guessed."""
        from qeff.generate import Engine as Generation
        from qeff.generate import Request, SamplingParams

        engine = Generation(self._session, reuse_prefixes=False)
        for index, (prompt, num_new) in enumerate(requests):
            params = SamplingParams(max_tokens=num_new, ignore_eos=True)
            engine.add(Request(tuple(prompt), params, id=str(index)))
        while engine.has_work:
            for delta in engine.step():
                for _ in delta.token_ids:
                    note(int(delta.request_id))

    def _step(
        self, parts: Sequence[Sequence[int]], rows: np.ndarray, *, is_greedy: bool = False
    ) -> StepOutput:
        """One step of equally many tokens of the first sequences, all at the same position."""
        count = len(parts[0])
        positions = np.arange(self._at, self._at + count)
        batch = Batch(
            tokens=np.asarray(parts, np.int64).reshape(-1),
            positions=np.tile(positions, len(parts)),
            spans=tuple(
                Span(i * count, (i + 1) * count, self._blocks[i]) for i in range(len(parts))
            ),
            logit_rows=rows,
            choices=np.array([GREEDY] * len(rows), CHOICE) if is_greedy else None,
        )
        self._at += count
        return self._session.step(batch)
