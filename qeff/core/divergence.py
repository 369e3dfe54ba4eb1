"""How far apart two rows of logits are: log-probabilities and the KL divergence, in float64.

Knows nothing of where logits come from.
"""

from __future__ import annotations

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities along the last axis."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def divergence(reference: np.ndarray, found: np.ndarray) -> np.ndarray:
    """KL(reference ‖ found) in nats of each row of log-probabilities [R, vocab]."""
    # A token that the reference gives no chance at all counts nothing, however the other sees it.
    chance = np.exp(reference)
    gap = np.where(chance > 0.0, reference - found, 0.0)
    return np.asarray(np.einsum("rv,rv->r", chance, gap))
