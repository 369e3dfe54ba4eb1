"""transformers in float32, eager: the distributions that the others are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

import numpy as np
import torch
import transformers

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def versions() -> dict[str, str]:
    """Versions of the model's code and of the arithmetic."""
    return {name: metadata.version(name) for name in ("transformers", "torch")}


class Engine:
    """A checkpoint folder; it gives logits only."""

    def __init__(self, model: str, threads: int, ctx_len: int, num_sequences: int) -> None:
        del ctx_len, num_sequences
        torch.set_num_threads(threads)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._model = loaded.eval()

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Run one text and give every row of logits."""
        with torch.inference_mode():
            return self._model(torch.tensor([list(tokens)]), use_cache=False).logits[0].numpy()
