"""Opens a checkpoint, whichever kind it is.

Knows the kinds by name; each kind has a file of its own.
"""

from __future__ import annotations

from pathlib import Path

from qeff.core.progress import Progress, silent
from qeff.sources.base import Source
from qeff.sources.location import GGUF, RANDOM, Location, locate


def open_source(
    ref: str | Path | Location | None,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    trust_remote_code: bool = False,
    progress: Progress = silent,
) -> Source:
    """Open the checkpoint that ``ref`` names; headers are read at once, values when asked for."""
    if not isinstance(ref, Location):
        ref = locate(
            ref,
            revision=revision,
            cache_dir=cache_dir,
            token=token,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    if ref.kind == GGUF:
        from qeff.sources.gguf_file import GgufSource

        return GgufSource(ref)
    if ref.kind == RANDOM:
        from qeff.sources.dummy import DummySource

        return DummySource(ref)
    from qeff.sources.safetensors_folder import SafetensorsSource

    return SafetensorsSource(ref)
