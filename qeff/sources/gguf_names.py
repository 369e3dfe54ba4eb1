"""Gives GGUF tensors their Hugging Face names, with the tables of transformers and gguf.

The model is built on the ``meta`` device from its config to know the names and shapes it wants.
Knows no values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from qeff.core.errors import SourceError, UnsupportedModel
from qeff.core.tensor import LazyTensor
from qeff.sources.gguf_header import GgufHeader, GgufTensorInfo
from qeff.sources.gguf_rows import Conversion
from qeff.sources.gguf_tensor import ComputedTensor, RowsTensor
from qeff.sources.library_border import LibraryBorder

_HINT = "the file's metadata and tensors do not belong together; convert the model again"


def name_tensors(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Every tensor that the model of this config wants, by its Hugging Face name."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

    shapes, model = _build_on_meta(header, config)
    known: Mapping[str, Any] = TENSOR_PROCESSORS
    processor = known.get(header.architecture, TensorProcessor)(config=dict(config))
    key_map = _map_names(header, model, processor)
    grouped: dict[str, list[GgufTensorInfo]] = {}
    for info in header.tensors.values():
        hf_name = key_map.get(info.name) or key_map.get(info.name.removesuffix(".weight"))
        if hf_name in shapes:
            grouped.setdefault(hf_name, []).append(info)
    if not grouped:
        raise SourceError(f"{header.path} holds no tensor of its model", _HINT)
    return {
        hf_name: _make_tensor(
            hf_name, shapes[hf_name], tuple(parts), Conversion(processor, key_map, hf_name)
        )
        for hf_name, parts in grouped.items()
    }


def _build_on_meta(
    header: GgufHeader, config: Mapping[str, Any]
) -> tuple[dict[str, tuple[int, ...]], Any]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    border = LibraryBorder(
        UnsupportedModel,
        f"{header.path} describes a model that cannot be built",
        f"its architecture {header.architecture!r} or one of its sizes is not supported",
    )
    auto: Any = AutoModelForCausalLM
    with border, torch.device("meta"):
        model = auto.from_config(AutoConfig.for_model(**config))
        return {name: tuple(value.shape) for name, value in model.state_dict().items()}, model


class _OnlyNames:
    """A model as far as its own parameter names go, without submodules."""

    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.state_dict = model.state_dict

    def named_children(self) -> list[tuple[str, Any]]:
        return []


def _map_names(header: GgufHeader, model: Any, processor: Any) -> dict[str, str]:
    from transformers.modeling_gguf_pytorch_utils import get_gguf_hf_weights_map

    with LibraryBorder(
        UnsupportedModel,
        f"the tensors of {header.path} have no known names",
        f"GGUF files of the architecture {header.architecture!r} are not supported",
    ):
        key_map: dict[str, str] = get_gguf_hf_weights_map(_OnlyNames(model), processor)
        if not key_map.keys() >= header.tensors.keys():
            # Some converters name tensors from a submodule; looking there takes seconds.
            key_map = get_gguf_hf_weights_map(model, processor)
    # transformers has this one name in code instead of in its table.
    key_map.setdefault("output.weight", "lm_head.weight")
    return key_map


def _make_tensor(
    hf_name: str,
    shape: tuple[int, ...],
    parts: tuple[GgufTensorInfo, ...],
    conversion: Conversion,
) -> LazyTensor:
    num_values = sum(math.prod(part.shape) for part in parts)
    if num_values != math.prod(shape):
        raise SourceError(
            f"tensor {hf_name} of {parts[0].place.path} has {num_values} values, "
            f"and its config asks for the shape {list(shape)}",
            _HINT,
        )
    is_one_format = len({part.format for part in parts}) == 1
    order = conversion.row_order(parts, shape) if is_one_format else None
    if order is None:
        return ComputedTensor(hf_name, shape, parts, conversion)
    is_moved = bool((order[1:] < order[:-1]).any())
    return RowsTensor(hf_name, shape, parts[0].format, parts, order if is_moved else None)
