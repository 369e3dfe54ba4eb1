"""The picture of a load: how first tokens, gaps and whole answers are spread, and its course.

Needs matplotlib, which is asked for before any work is done. Takes records; knows nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qeff.apps.load.figures import KINDS, values
from qeff.apps.load.record import Record
from qeff.core.errors import ResourceError

SIZE_INCHES = (12.0, 7.0)
NUM_BINS = 60  # of the course


def draw(records: Sequence[Record], path: Path, *, title: str) -> None:
    """Write the picture; the ending of the name decides its kind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes: Any = figure.subplots(2, 2)
    whole = [record for record in records if record.is_whole]
    for kind, where in (("ttft", axes[0][0]), ("itl", axes[0][1]), ("e2el", axes[1][0])):
        _draw_spread(where, kind, values(kind, whole))
    _draw_course(axes[1][1], records)
    figure.suptitle(title)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ResourceError(
            f"the picture cannot be written to {path}: {error}", "name a file such as out.png"
        ) from error


def _draw_spread(axes: Any, kind: str, seconds: Sequence[float]) -> None:
    """The share of requests, or gaps, that took at most each time."""
    if seconds:
        some = np.sort(np.asarray(seconds)) * 1e3
        axes.step(some, np.arange(1, len(some) + 1) / len(some), where="post")
        for percent, style in ((50, ":"), (95, "--")):
            at = float(np.percentile(some, percent))
            axes.axvline(at, linestyle=style, color="grey", label=f"p{percent} {at:.1f} ms")
        axes.legend()
    axes.set(xlabel=f"{KINDS[kind]}, ms", ylabel="share at most that", ylim=(0, 1.02))


def _draw_course(axes: Any, records: Sequence[Record]) -> None:
    """Requests that run, and pieces of text that came in a second, over time."""
    began = min(record.started for record in records)
    ended = max(record.ended or record.started for record in records)
    edges = np.linspace(0.0, max(ended - began, 1e-3), NUM_BINS + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    starts = np.array([record.started - began for record in records])
    stops = np.array([(record.ended or ended) - began for record in records])
    axes.plot(middle, [((starts <= t) & (stops > t)).sum() for t in middle], color="tab:orange")
    axes.set(xlabel="time, s", ylabel="requests that run (orange)")
    came = [
        record.first - began + at
        for record in records
        if record.first is not None
        for at in np.cumsum([0.0, *record.gaps])
    ]
    counts, _ = np.histogram(came, edges)
    beside = axes.twinx()
    beside.plot(middle, counts / (edges[1] - edges[0]), color="tab:blue")
    beside.set_ylabel("pieces of text a second (blue)")
