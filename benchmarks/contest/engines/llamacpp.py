"""llama.cpp through the C interface of llama-cpp-python; the next token is numpy's argmax.

One micro-batch of 512 tokens, cache in fp16, everything else as llama.cpp has it by default. Also
makes GGUF files with llama.cpp's own quantiser. Knows no text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata

import llama_cpp as lib
import numpy as np

MAX_STEP = 512


@lib.llama_log_callback
def _keep_quiet(level: int, text: bytes, data: object) -> None:
    """Drop a line of the library's log."""


lib.llama_log_set(_keep_quiet, None)


def versions() -> dict[str, str]:
    """The binding's version and the processor features that the library was built for."""
    features = lib.llama_print_system_info().decode().strip(" |")
    return {"llama-cpp-python": metadata.version("llama-cpp-python"), "llama.cpp": features}


def quantise(source: str, out: str, kind: str, threads: int) -> None:
    """Write ``source`` in the mixture that llama.cpp calls ``kind``, such as Q4_K_M."""
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.nthread = threads
    if lib.llama_model_quantize(source.encode(), out.encode(), params):
        raise RuntimeError(f"llama.cpp could not write {out}")


class Engine:
    """A model and a context of ``num_sequences`` sequences."""

    is_unified = False  # whether all sequences share one cache, or each has its own

    def __init__(self, model: str, threads: int, ctx_len: int, num_sequences: int) -> None:
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(
            model.encode(), lib.llama_model_default_params()
        )
        params = lib.llama_context_default_params()
        params.n_ctx = ctx_len * num_sequences
        params.n_seq_max = num_sequences
        params.n_batch = params.n_ubatch = MAX_STEP
        params.kv_unified = self.is_unified
        params.n_threads = params.n_threads_batch = threads
        self._context = self._model and lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp could not open {model}")
        self._vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._batch = lib.llama_batch_init(MAX_STEP, 0, 1)
        self._at = 0

    def start(self, prompts: Sequence[Sequence[int]], num_new: int) -> list[int]:
        """Run whole prompts, as many tokens in one call as the batch holds."""
        del num_new
        self._clear()
        length = len(prompts[0])
        entries = [
            (token, at, owner, at == length - 1)
            for owner, prompt in enumerate(prompts)
            for at, token in enumerate(prompt)
        ]
        self._at = length
        found: list[int] = []
        for i in range(0, len(entries), MAX_STEP):
            found += self._run(entries[i : i + MAX_STEP]).argmax(axis=1).tolist()
        return found

    def advance(self, tokens: Sequence[int]) -> list[int]:
        """Run one token of each sequence."""
        logits = self._run([(token, self._at, owner, True) for owner, token in enumerate(tokens)])
        self._at += 1
        return [int(token) for token in logits.argmax(axis=1)]

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Run one text and give every row of logits."""
        self._clear()
        entries = [(token, at, 0, True) for at, token in enumerate(tokens)]
        parts = [
            self._run(entries[i : i + MAX_STEP]).copy() for i in range(0, len(entries), MAX_STEP)
        ]
        return np.concatenate(parts)

    def serve(
        self, requests: Sequence[tuple[Sequence[int], int]], note: Callable[[int], None]
    ) -> None:
        """As llama.cpp's server does it: a token of each that writes, then prompts in pieces."""
        self._clear()
        texts = [list(prompt) for prompt, _ in requests]
        ends = [len(prompt) + num_new for prompt, num_new in requests]
        done = [0] * len(requests)  # tokens of each text that were run
        while going := [i for i, text in enumerate(texts) if len(text) < ends[i]]:
            going.sort(key=lambda i: len(texts[i]) - done[i] > 1)
            entries: list[tuple[int, int, int, bool]] = []
            due: list[int] = []
            for i in going:
                count = min(len(texts[i]) - done[i], MAX_STEP - len(entries))
                entries.extend(
                    (texts[i][at], at, i, at == len(texts[i]) - 1)
                    for at in range(done[i], done[i] + count)
                )
                done[i] += count
                if count and done[i] == len(texts[i]):
                    due.append(i)
            chosen = self._run(entries).argmax(axis=1).tolist()
            for i, token in zip(due, chosen, strict=True):
                texts[i].append(token)
                note(i)

    def _clear(self) -> None:
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)

    def _run(self, entries: Sequence[tuple[int, int, int, bool]]) -> np.ndarray:
        """Run (token, position, sequence, wanted) entries; the wanted rows, until the next call."""
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, (token, at, owner, is_wanted) in enumerate(entries):
            batch.token[i] = token
            batch.pos[i] = at
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = owner
            batch.logits[i] = is_wanted
        if lib.llama_decode(self._context, batch):
            raise RuntimeError("llama.cpp could not run the step")
        # The rows of the wanted tokens lie one after the other, in their order.
        count = sum(entry[3] for entry in entries)
        if not count:
            return np.empty((0, self._vocab_size), np.float32)
        return np.ctypeslib.as_array(
            lib.llama_get_logits(self._context), shape=(count, self._vocab_size)
        )
