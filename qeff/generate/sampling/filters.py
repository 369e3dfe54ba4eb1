"""The filters of sampling: which tokens remain after top-k, typical, top-p and min-p.

Each takes one row's scores, float32 [N] with -inf for what may not come, and gives the places that
remain, in their order; two also take the scores' powers, which are probabilities of any sum. Equal
scores remain or go together. None of the filters sorts a vocabulary. Knows nothing of token ids,
temperature or random numbers.
"""

from __future__ import annotations

import numpy as np

_FEW = 1024  # so many are sorted at once
_NUM_GROUPS = 1024


def keep_top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """The k largest, and what equals the smallest of them."""
    return np.flatnonzero(scores >= kth_largest(scores, min(k, len(scores))))


def keep_typical(scores: np.ndarray, weights: np.ndarray, p: float) -> np.ndarray:
    """Those whose information is nearest to the entropy, until their probabilities sum to p."""
    total = _sum(weights)
    # 0 · -inf has no value; a power is 0 long before this bound.
    information = -_sum(weights * np.maximum(scores, np.float32(-1000))) / total
    distances = np.abs(scores + np.float32(information))
    return np.flatnonzero(distances <= reach(distances, weights, p * total))


def keep_top_p(scores: np.ndarray, weights: np.ndarray, p: float) -> np.ndarray:
    """The likeliest until their probabilities sum to p."""
    total = _sum(weights)
    # All that are below this weigh less together than what is to go; the margin is for rounding.
    is_likely = weights >= np.float32((1 - p) * total / len(scores) * 0.99)
    if 4 * np.count_nonzero(is_likely) > len(scores):  # then picking them out costs more
        return _nearest(scores, weights, p * total)
    likely = np.flatnonzero(is_likely)
    return np.asarray(likely[_nearest(scores[likely], weights[likely], p * total)])


def keep_min_p(scores: np.ndarray, p: float) -> np.ndarray:
    """Those at least p times as likely as the likeliest."""
    return np.flatnonzero(scores >= scores.max() + np.float32(np.log(p)))


def kth_largest(values: np.ndarray, k: int) -> np.float32:
    """The k-th largest of [N], 1 <= k <= N."""
    num_groups = max(_NUM_GROUPS, 4 * k)
    if len(values) >= 4 * num_groups:
        # At least k values reach the k-th largest of the groups' maxima, and not many more do.
        whole = values[: len(values) // num_groups * num_groups]
        bound = kth_largest(whole.reshape(-1, num_groups).max(axis=0), k)
        values = values[np.flatnonzero(values >= bound)]
    place = len(values) - k
    return np.float32(np.partition(values, place)[place])


def reach(distances: np.ndarray, weights: np.ndarray, wanted: float) -> np.float32:
    """The smallest distance within which the weights sum to ``wanted``; else the largest one.

    Distances are not negative. Many of them are first told apart by groups of equal width, so that
    only one group is sorted.
    """
    if len(distances) > _FEW:
        last = np.float32(_NUM_GROUPS - 1)
        scale = last / np.float32(min(max(float(distances.max()), 1e-6), 64.0))
        groups = np.minimum(distances * scale, last).astype(np.intp)
        sums = np.cumsum(np.bincount(groups, weights))
        group = groups.max() if sums[-1] < wanted else np.searchsorted(sums, wanted)
        wanted -= sums[group - 1] if group else 0.0
        inside = np.flatnonzero(groups == group)
        distances, weights = distances[inside], weights[inside]
    order = np.argsort(distances)
    sums = np.cumsum(weights[order], dtype=np.float64)
    place = min(int(np.searchsorted(sums, wanted)), len(sums) - 1)
    return np.float32(distances[order[place]])


def _nearest(scores: np.ndarray, weights: np.ndarray, wanted: float) -> np.ndarray:
    """The places of the largest scores until their weights sum to ``wanted``."""
    distances = scores.max() - scores
    return np.flatnonzero(distances <= reach(distances, weights, wanted))


def _sum(values: np.ndarray) -> float:
    return float(values.sum(dtype=np.float64))
