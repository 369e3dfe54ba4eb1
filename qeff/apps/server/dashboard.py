"""A server's numbers as its page draws them: rates, shares, percentiles and two minutes of history.

All models and replicas together, and each model by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from qeff.apps.server import measures, meters
from qeff.apps.server.meters import HISTORY_S, RECENT

RATE_S = 5  # seconds that a rate is the mean of
PERCENTILES = (50, 90, 95, 99)


def dashboard(gathered: Mapping[str, Any], now: float | None = None) -> dict[str, Any]:
    """What /stats gives; ``history`` has one place for each second, the oldest first."""
    second = int(time.time() if now is None else now)
    models = gathered["models"]
    parts = {name: _numbers(one, second) for name, one in models.items()}
    whole = {
        "meter": meters.add(one["meter"] for one in models.values()),
        "totals": measures.summed(one["totals"] for one in models.values()),
        "engine": measures.summed(one["engine"] for one in models.values()),
    }
    return {
        "time": second,
        "replicas": gathered["replicas"],
        "draining": gathered["draining"],
        "refused": gathered["refused"],
        **_numbers(whole, second),
        "history": _history(whole["meter"]["seconds"], second),
        "models": parts,
    }


def _numbers(one: Mapping[str, Any], second: int) -> dict[str, Any]:
    meter, engine, totals = one["meter"], one["engine"], one["totals"]
    counts = meter["totals"]
    seconds = meter["seconds"]
    return {
        "running": engine["running"],
        "waiting": engine["waiting"],
        "open": engine["open"],
        "requests": meter["open"],
        "finished": sum(meter["finishes"].values()),
        "tokens_per_s": _rate(seconds, "output_tokens", second),
        "prompt_tokens_per_s": _rate(seconds, "prompt_tokens", second),
        "output_tokens": counts.get("output_tokens", 0),
        "prompt_tokens": counts.get("prompt_tokens", 0),
        "cache_use": measures.cache_use(engine),
        "prefix_hit_rate": _share(counts.get("prefix_hits", 0), counts.get("prefix_queries", 0)),
        "acceptance": _share(totals["num_accepted"], totals["num_drafted"]),
        "drafted": totals["num_drafted"],
        "preemptions": totals["num_preemptions"],
        **{name: percentiles(meter["recent"][name]) for name in RECENT},
    }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """The nearest-rank percentiles of the last minutes; None where there was nothing."""
    ordered = sorted(values)
    found: dict[str, float | None] = {}
    for share in PERCENTILES:
        rank = max(1, math.ceil(share / 100 * len(ordered)))
        found[f"p{share}"] = ordered[rank - 1] if ordered else None
    return found


def _history(seconds: Mapping[str, Mapping[str, float]], now: int) -> dict[str, list[float]]:
    """Whole seconds alone: the one that is running is left out."""
    places = [seconds.get(str(now - ago), {}) for ago in range(HISTORY_S, 0, -1)]
    return {
        "running": [place.get("level running", 0) for place in places],
        "waiting": [place.get("level waiting", 0) for place in places],
        "cache_use": [round(place.get("level cache_use", 0), 4) for place in places],
        "tokens_per_s": [place.get("output_tokens", 0) for place in places],
        "prompt_tokens_per_s": [place.get("prompt_tokens", 0) for place in places],
        "finished": [place.get("finished", 0) for place in places],
    }


def _rate(seconds: Mapping[str, Mapping[str, float]], name: str, now: int) -> float:
    told = [seconds.get(str(now - ago), {}).get(name, 0) for ago in range(RATE_S, 0, -1)]
    return sum(told) / RATE_S


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
