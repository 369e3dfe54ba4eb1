"""The picture of an evaluation: perplexity along the text, and how KL divergence is spread.

Needs matplotlib, which is asked for before any work is done. Takes findings; knows nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qeff.core.errors import ResourceError

if TYPE_CHECKING:
    from qeff.apps.evaluate.measure import Finding

SIZE_INCHES = (11.0, 4.2)
FLOOR = 1e-9  # smaller divergences are rounding, and a log scale has no zero
MAX_POINTS = 4000  # a longer curve looks no different


def check() -> None:
    """Say at once when the picture could not be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ResourceError(
            "--plot needs matplotlib, which is not installed", "pip install 'qeff[plot]'"
        ) from error


def draw(findings: Sequence[Finding], path: Path, *, title: str) -> None:
    """Write the picture; the ending of the name decides its kind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    shown = [finding for finding in findings if finding.phase.same_as is None]
    compared = [f for f in shown if f.kl is not None and bool(f.kl.any())]
    axes: Any = figure.subplots(1, 2 if compared else 1, squeeze=False)[0]
    _draw_perplexity(axes[0], shown)
    if compared:
        _draw_divergence(axes[1], compared)
    figure.suptitle(title)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ResourceError(
            f"the picture cannot be written to {path}: {error}", "name a file such as out.png"
        ) from error


def _draw_perplexity(axes: Any, findings: Sequence[Finding]) -> None:
    """The perplexity of all tokens up to each."""
    for finding in findings:
        counts = np.arange(1, len(finding.nll) + 1)
        running = np.exp(np.cumsum(finding.nll) / counts)
        kept = np.unique(np.linspace(0, len(counts) - 1, MAX_POINTS).astype(np.int64))
        label = f"{finding.phase.name} ({finding.perplexity:.2f})"
        axes.plot(counts[kept], running[kept], label=label)
    axes.set(xlabel="tokens scored", ylabel="perplexity so far", yscale="log")
    axes.legend()


def _draw_divergence(axes: Any, findings: Sequence[Finding]) -> None:
    """The share of tokens whose divergence is at most each value."""
    for finding in findings:
        assert finding.kl is not None
        values = np.sort(np.maximum(finding.kl, FLOOR))
        share = np.arange(1, len(values) + 1) / len(values)
        kept = np.unique(np.linspace(0, len(values) - 1, MAX_POINTS).astype(np.int64))
        label = f"{finding.phase.name} (mean {finding.kl.mean():.4f})"
        axes.plot(values[kept], share[kept], label=label)
    axes.set(xlabel="KL divergence from float, nats", ylabel="share of tokens", xscale="log")
    axes.legend()
