"""prepare: a source becomes a traceable decoder. The whole story of this room, in order.

1. config -> model without storage; 2. a dry run finds the caches; 3. every parameter gets its
origin in the checkpoint; 4. spec and hooks are bound together. Knows nothing about graphs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from transformers import PreTrainedConfig

from qeff.core.errors import UnsupportedModel
from qeff.core.options import ExportOptions
from qeff.core.spec import CacheLayer, ModelSpec
from qeff.sources import Source
from qeff.sources.speculator import KEY as HEADS
from qeff.transform.artifact import Prepared
from qeff.transform.attention import NAME, attention_hooks
from qeff.transform.build import build_model, fake_mode_of, read_config
from qeff.transform.cache import seen_layers, watching_cache
from qeff.transform.heads import attach_heads
from qeff.transform.hooks import hooks
from qeff.transform.kinds import check_direction, check_layers
from qeff.transform.positions import num_positions
from qeff.transform.reference import reference
from qeff.transform.trace import CallForm, Decoder, Trace
from qeff.transform.weights import check_plain, weight_map

# What torch raises when a model without values is asked for one.
BY_VALUE = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
POSITION_NAMES = (
    "max_position_embeddings", "max_seq_len", "n_positions", "seq_length", "max_target_positions",
)  # fmt: skip


def prepare(source: Source, options: ExportOptions) -> Prepared:
    """Make a checkpoint ready to be traced; no tensor is read."""
    check_plain(source)
    config = read_config(source, trust_remote_code=options.trust_remote_code)
    trace = Trace()
    # 1. The model, its attention bound to ours by name.
    with attention_hooks(trace):
        model = build_model(config, trust_remote_code=options.trust_remote_code)
    check_layers(model, config)
    heads = source.config.get(HEADS)
    if heads:
        with fake_mode_of(model), torch.no_grad():
            attach_heads(model, heads)
    # 2. The caches it keeps.
    call = call_form(model)
    with hooks(model, trace):
        layers, num_logits = find_caches(model, config)
    vocab_size = num_logits // (1 + (heads or {}).get("num_heads", 0))
    check_direction(trace.directions, type(model).__name__)
    trace.notes.clear()
    # 3. Where its weights come from.
    weights, unused = weight_map(model, source.tensors)
    # 4. All of it together.
    spec = make_spec(source, config, model, layers, vocab_size)
    return Prepared(
        module=Decoder(model, trace, layers, call).eval(),
        spec=spec,
        options=options,
        weights={f"model.{name}": origin for name, origin in weights.items()},
        tensors=source.tensors,
        unused=unused,
        source_name=source.name,
        source_hash=source.header_hash(),
        tracing=functools.partial(_tracing, model, trace),
        reference=functools.partial(reference, source, options, spec.num_params),
        notes=trace.notes,
    )


def _tracing(model: nn.Module, trace: Trace) -> AbstractContextManager[None]:
    trace.notes.clear()
    return hooks(model, trace)


def call_form(model: Any) -> CallForm:
    """How the model wants to be told which token stands where."""
    takes = inspect.signature(model.forward).parameters
    if "past_key_values" not in takes:
        name = type(model).__name__
        raise UnsupportedModel(
            f"{name} takes no key and value cache",
            "only decoders whose layers all keep keys and values can be exported",
        )
    positions = "position_ids" in takes
    # A model with attention code of its own may count its keys by the mask (ALiBi does).
    counts = not positions or model.config._attn_implementation != NAME
    return CallForm(takes_positions=positions, takes_mask=counts and "attention_mask" in takes)


def find_caches(model: nn.Module, config: PreTrainedConfig) -> tuple[tuple[CacheLayer, ...], int]:
    """A dry run on tensors without values: the layers that keep a cache, and how many logits."""
    cache = watching_cache()
    try:
        with fake_mode_of(model), torch.no_grad():
            tokens = torch.zeros(1, 4, dtype=torch.int64)
            out = model(input_ids=tokens, past_key_values=cache, use_cache=True)
    except BY_VALUE as error:
        raise UnsupportedModel(
            f"{type(model).__name__} decides by values how large its tensors are",
            "its code needs a form of its own in qeff/transform/families",
        ) from error
    layers = seen_layers(cache)
    if not layers:
        raise UnsupportedModel(
            f"{config.model_type} keeps no key and value cache",
            "state-space and recurrent models cannot be exported yet",
        )
    return layers, int(out.logits.shape[-1])


def make_spec(
    source: Source,
    config: PreTrainedConfig,
    model: nn.Module,
    layers: tuple[CacheLayer, ...],
    vocab_size: int,
) -> ModelSpec:
    """What the rest of the project needs to know about the model."""
    text: Any = config.get_text_config(decoder=True)
    positions = num_positions(model) or _first_number(text, POSITION_NAMES)
    return ModelSpec(
        name=source.name,
        architecture=type(model).__name__,
        model_type=config.model_type,
        vocab_size=vocab_size,
        # A decoder that comes from a pair says the number of its encoder's layers otherwise.
        num_layers=int(_first_number(text, ("decoder_layers", "num_hidden_layers")) or len(layers)),
        num_params=sum(parameter.numel() for parameter in model.parameters()),
        max_positions=positions,
        caches=layers,
    )


def _first_number(config: Any, names: Sequence[str]) -> int | None:
    known = (getattr(config, name, None) for name in names)
    return next((value for value in known if isinstance(value, int)), None)
