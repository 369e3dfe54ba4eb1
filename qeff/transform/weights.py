"""Where every parameter comes from: an expression over checkpoint tensors.

Names are resolved by transformers' own renamings and converters, so that whatever it does to a
checkpoint while loading (legacy names, prefixes, experts merged into one tensor) is done here too,
on names and shapes only. A parameter without a tensor is an error; left-over tensors are listed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from qeff.core.errors import SourceError, UnsupportedModel
from qeff.core.tensor import LazyTensor
from qeff.sources import Source
from qeff.transform.conversions import Recorder
from qeff.transform.expression import Expression, Leaf, leaves

# Tables that old checkpoints carry and models compute themselves.
IGNORED = re.compile(r"(rotary_emb\.|\.)inv_freq$|\.(masked_bias|attn\.bias|attention\.bias)$")

FLOATS = {"f64", "f32", "f16", "bf16"}


def check_plain(source: Source) -> None:
    """Raise for weights that mean something only together with the scales that lie beside them."""
    if source.folder is None:
        return  # blocks of GGUF hold their scales, and random weights are floats
    told = source.config.get("quantization_config")
    parts = [name.rpartition(".") for name in source.tensors]
    scaled = {owner for owner, _, name in parts if "scale" in name}
    for name, tensor in source.tensors.items():
        if tensor.format in FLOATS or IGNORED.search(name):
            continue
        if told or name.rpartition(".")[0] in scaled:
            method = told.get("quant_method") if isinstance(told, Mapping) else None
            raise UnsupportedModel(
                f"{source.name} is quantised{f' by {method}' if method else ''}: "
                f"{name} has its scales in tensors of their own",
                "take the checkpoint that it was made from, or a GGUF file of the model",
            )


def weight_map(
    model: nn.Module, tensors: Mapping[str, LazyTensor]
) -> tuple[dict[str, Expression], tuple[str, ...]]:
    """An expression for every parameter (and stored buffer), and the tensors that nothing reads."""
    state = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found, unread = _resolve(model, tensors, state)
    _share_tied(model, found)
    _check(model, found, state)
    read = {leaf.name for expression in found.values() for leaf in leaves(expression)}
    left = {*unread, *(name for name in tensors if name not in read)}
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or []
    known = [IGNORED, *(re.compile(pattern) for pattern in ignored)]
    unused = sorted(name for name in left if not any(p.search(name) for p in known))
    return found, tuple(unused)


def _resolve(
    model: Any, tensors: Mapping[str, LazyTensor], state: dict[str, tuple[int, ...]]
) -> tuple[dict[str, Expression], list[str]]:
    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {p: entry for entry in converters for p in entry.source_patterns}
    prefix = model.base_model_prefix
    found: dict[str, Expression] = {}
    waiting: dict[str, WeightConverter] = {}
    unread: list[str] = []
    recorder = Recorder()
    for name in sorted(tensors, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, state)
        if target not in state and name in state:
            target, pattern = name, None
        leaf = Leaf(name, tuple(tensors[name].shape))
        if target not in state:
            unread.append(name)
        elif pattern is None:
            found[target] = leaf
        else:
            converter: Any = waiting.setdefault(target, copy.deepcopy(by_pattern[pattern]))
            converter.add_tensor(target, name, pattern, recorder.tensor(leaf))
    for target, converter in waiting.items():
        with recorder:
            made = converter.convert(target, model=model, config=model.config)
        for full_name, value in made.items():
            tensor = value[0] if isinstance(value, list) else value
            found[full_name] = recorder.expression(tensor)
    return found, unread


def _share_tied(model: Any, found: dict[str, Expression]) -> None:
    """Give every name of a tied parameter what the checkpoint has for one of them."""
    groups: dict[int, list[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(value), []).append(name)
    for names in groups.values():
        have = [name for name in names if name in found]
        if not have:
            continue
        for name in names:
            found.setdefault(name, found[have[0]])
        if len({found[name] for name in have}) > 1:
            # The checkpoint holds several tensors: they are not tied, whatever the config says.
            for name in have[1:]:
                _untie(model, name)


def _untie(model: nn.Module, name: str) -> None:
    owner_name, _, leaf = name.rpartition(".")
    owner: Any = model.get_submodule(owner_name)
    owner._parameters[leaf] = nn.Parameter(owner._parameters[leaf].data.clone(), False)


def _check(
    model: nn.Module, found: Mapping[str, Expression], state: Mapping[str, tuple[int, ...]]
) -> None:
    missing = [name for name, _ in model.named_parameters() if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise SourceError(
            f"the checkpoint has no tensor for {missing[0]}{more}",
            "the files and config.json may belong to different models, or a shard is missing",
        )
    for name, expression in found.items():
        if name in state and expression.shape != state[name]:
            raise SourceError(
                f"{name} has the shape {list(expression.shape)} in the checkpoint, "
                f"but config.json asks for {list(state[name])}",
                "the files and config.json belong to different models",
            )
