"""Which kinds of layer can be exported, decided before anything is traced.

A layer that keeps a state other than keys and values is named with its class, so that the message
says what stands in the way. Knows nothing about how a layer is traced.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from qeff.core.errors import UnsupportedModel

ATTENTION_KINDS = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
KIND_NAMES = ("layer_types", "layers_block_type")


def check_layers(model: nn.Module, config: PreTrainedConfig) -> None:
    """Raise UnsupportedModel for the first layer that is no attention layer."""
    text: Any = config.get_text_config(decoder=True)
    kinds = (getattr(text, name, None) for name in KIND_NAMES)
    for i, kind in enumerate(next((found for found in kinds if found), ())):
        if kind not in ATTENTION_KINDS:
            raise UnsupportedModel(
                f"layer {i} ({_class_of(model, i)}) is of the kind {kind!r}, "
                "which keeps a state other than keys and values",
                "recurrent, state-space and convolution layers cannot be exported yet",
            )
    if any(getattr(module, "rope_type", None) == "dynamic" for module in model.modules()):
        raise UnsupportedModel(
            f"{config.model_type} has rotary embeddings of the type 'dynamic', whose frequencies "
            "change with the length of a text",
            "for texts within max_position_embeddings set rope_type to 'default' in config.json",
        )


def check_direction(directions: set[str], name: str) -> None:
    """Raise UnsupportedModel for a model that looks back and ahead and never back alone."""
    if directions == {"both"}:
        raise UnsupportedModel(
            f"{name} attends in both directions, so that nothing of it can be cached",
            'a model that can also decode needs "is_decoder": true in its config.json',
        )


def _class_of(model: nn.Module, index: int) -> str:
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) > index:
            return type(module[index]).__name__
    return type(model).__name__
