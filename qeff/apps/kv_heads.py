"""A checkpoint with its heads of keys and values repeated: written beside, tried, published.

The result computes what the original does, with more and equal heads, for devices that want one
for each core. It is tried on a text before it gets its name; one that differs is not written.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qeff.apps.pipeline import Ref, opened
from qeff.apps.staging import draft_folder, publish
from qeff.core.atomic_folder import place_of
from qeff.core.errors import OptionValueError, UnsupportedModel
from qeff.core.options import CompileOptions, ExportOptions
from qeff.core.progress import Event, Progress, silent
from qeff.sources import Location, locate, open_source

if TYPE_CHECKING:
    from qeff.sources import Source

PROBE_TOKENS = 32
MAX_ERROR = 1e-4  # of the largest logit


def replicate_kv_heads(
    ref: Ref,
    repeat: int,
    out: str | Path,
    *,
    trust_remote_code: bool = False,
    progress: Progress = silent,
) -> Path:
    """Write the checkpoint with each head of keys and values ``repeat`` times to ``out``."""
    location = ref if isinstance(ref, Location) else locate(ref, progress=progress)
    folder = place_of(Path(out))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionValueError(f"{folder} is there already", "name a folder that is not")
    source = opened(location)
    if source.folder is None or source.kind != "safetensors":
        raise UnsupportedModel(
            f"{source.name} is no folder of safetensors", "only such checkpoints can be rewritten"
        )
    from qeff.sources.rewrite import Repeat, rewrite_folder
    from qeff.transform.kv_heads import find_replication

    found = find_replication(source, repeat, trust_remote_code=trust_remote_code)
    repeats = {name: Repeat(heads, repeat) for name, heads in found.heads.items()}
    with draft_folder(folder.parent) as draft:
        progress(Event("write", unit="stage"))
        rewrite_folder(source.folder, draft, repeats, _config(source.config, found.counts))
        progress(Event("check", unit="stage"))
        _check(source, open_source(draft), ExportOptions(trust_remote_code=trust_remote_code))
        if folder.is_dir():
            folder.rmdir()  # empty
        return publish(draft, folder, lambda _: False)


def _config(config: Any, counts: Any) -> dict[str, Any]:
    """config.json with these counts, in the part that is about text."""
    changed = copy.deepcopy(dict(config))
    part = changed.get("text_config")
    (part if isinstance(part, dict) else changed).update(counts)
    return changed


def _check(original: Source, changed: Source, options: ExportOptions) -> None:
    """Raise UnsupportedModel unless both give the same logits for a text."""
    from qeff.apps.probe import make_probe
    from qeff.compile.quality import reference_logits
    from qeff.export.exporter import draw
    from qeff.transform import prepare

    graphs = [draw(prepare(source, options)) for source in (original, changed)]
    probe = make_probe(original.text_files(), graphs[0].spec, CompileOptions(), False)
    tokens = probe.tokens[:PROBE_TOKENS]
    expected, found = (reference_logits(graph, tokens) for graph in graphs)
    error = float(np.abs(expected - found).max())
    if not error <= MAX_ERROR * max(1.0, float(np.abs(expected).max())):
        raise UnsupportedModel(
            f"the logits of {original.name} change by {error:.2g} when its heads are repeated",
            "nothing was written: its layers use their keys and values in another way",
        )
