"""Somebody independent to compare an export with: the original model, run eagerly by transformers.

A small checkpoint is loaded by transformers itself, so that names and conversions are its own; a
large one, or one without files, is stood for by a twin: the same architecture shrunken, with random
weights, saved and opened like any checkpoint.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from qeff.core.errors import SourceError
from qeff.core.options import ExportOptions
from qeff.sources import Source, locate, open_source
from qeff.sources.library_border import LibraryBorder
from qeff.sources.speculator import KEY as HEADS
from qeff.sources.speculator import with_heads, write_heads
from qeff.transform.artifact import Prepared
from qeff.transform.build import read_config
from qeff.transform.heads import attach_heads
from qeff.transform.quiet import quiet_transformers
from qeff.transform.shrink import shrink

MAX_LOADED_PARAMS = 300_000_000
SEED = 20


@dataclass(frozen=True, slots=True)
class EagerReference:
    """An eager model of transformers, and what to export for the comparison."""

    method: str
    reason: str
    prepared: Prepared | None  # None: the checkpoint itself
    model: Any

    def logits(self, tokens: Sequence[int], steps: Sequence[int]) -> np.ndarray:
        """Logits of one sequence, run alone with transformers' own cache in these steps."""
        cache, start, found = None, 0, []
        with torch.no_grad():
            for count in steps:
                ids = torch.tensor([list(tokens[start : start + count])])
                out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
                cache, start = out.past_key_values, start + count
                found.append(out.logits[0].float().numpy())
        return np.concatenate(found)


@contextmanager
def reference(source: Source, options: ExportOptions, num_params: int) -> Iterator[EagerReference]:
    """The eager model for a source's export."""
    reason = ""
    if num_params > MAX_LOADED_PARAMS:
        reason = f"{num_params} parameters are more than {MAX_LOADED_PARAMS}"
    elif source.folder is None and source.gguf_file is None:
        reason = "the source has no files that transformers can load"
    if not reason:
        with quiet_transformers():
            model = _load(source, options)
        if HEADS in source.config:
            attach_heads(model, source.config[HEADS])
            _load_heads(model, source)
        yield EagerReference("weights", reason, None, model)
        return
    config = read_config(source, trust_remote_code=options.trust_remote_code)
    with tempfile.TemporaryDirectory(prefix="qeff-twin-") as folder:
        heads = source.config.get(HEADS)
        yield make_twin(shrink(config), Path(folder), options, reason, heads)


def make_twin(
    config: PreTrainedConfig,
    folder: Path,
    options: ExportOptions,
    reason: str = "",
    heads: Mapping[str, int] | None = None,
) -> EagerReference:
    """A model with random weights, saved in the hub's layout and prepared from there."""
    from qeff.transform.pipeline import prepare

    with quiet_transformers():
        model = random_model(config)
        model.save_pretrained(folder)
        location = locate(folder)
        if heads:
            draws = np.random.default_rng(SEED)
            hidden = model.get_output_embeddings().in_features
            write_heads(folder, heads, hidden, lambda shape: 0.25 * draws.standard_normal(shape))
            location = with_heads(location)
        source = open_source(location)
        prepared = prepare(source, options)
        if heads:
            attach_heads(model, heads)
            _load_heads(model, source)
    return EagerReference("twin", reason, prepared, model)


def random_model(config: PreTrainedConfig) -> Any:
    """An eager model whose every parameter matters: no norm weight is one, no bias zero."""
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation="eager", dtype=torch.float32
    ).eval()
    draws = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=draws)
            if parameter.dim() == 1:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(0.25 * noise)
    return model


def _load_heads(model: Any, source: Source) -> None:
    values = {
        name: torch.from_numpy(source.tensors[f"{HEADS}.{name}"].read().astype(np.float32))
        for name in model.speculator.state_dict()
    }
    model.speculator.load_state_dict(values)


def _load(source: Source, options: ExportOptions) -> Any:
    known: dict[str, Any] = {
        "dtype": torch.float32,
        "attn_implementation": "eager",
        "trust_remote_code": options.trust_remote_code,
    }
    folder: Path | None = source.folder
    if source.gguf_file is not None:
        folder = source.gguf_file.parent
        known["gguf_file"] = source.gguf_file.name
        # Without it transformers walks through the file's whole vocabulary once more.
        known["config"] = read_config(source, trust_remote_code=options.trust_remote_code)
    assert folder is not None, "only a source with files is loaded"
    hint = "the original model is needed to check the export; mend the checkpoint's files"
    with LibraryBorder(SourceError, f"transformers cannot load {source.name}", hint):
        return AutoModelForCausalLM.from_pretrained(folder, **known).eval()
