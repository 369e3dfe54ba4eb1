"""A model from its config alone: parameters without storage, buffers with their values.

Nothing of the checkpoint is read and nothing of the model's size is allocated. Knows nothing about
hooks beyond the name of the attention function that a model is built for.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from qeff.core.errors import SourceError, UnsupportedModel, nearest
from qeff.sources import Source
from qeff.sources.library_border import LibraryBorder
from qeff.sources.speculator import KEY as HEADS
from qeff.transform.attention import NAME
from qeff.transform.families import register_family

CONFIG_HINT = "check the names and sizes in config.json"


def read_config(source: Source, *, trust_remote_code: bool) -> PreTrainedConfig:
    """The checkpoint's config as transformers understands it."""
    data = copy.deepcopy(dict(source.config))
    border = LibraryBorder(
        SourceError, f"the config of {source.name} is not one that transformers takes", CONFIG_HINT
    )
    if "auto_map" in data and trust_remote_code and source.folder is not None:
        with border:
            return AutoConfig.from_pretrained(source.folder, trust_remote_code=True)
    model_type = data.get("model_type")
    if isinstance(model_type, str):
        register_family(model_type)
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        close = nearest(str(model_type), list(CONFIG_MAPPING.keys()))
        hint = f"the nearest known type is {close!r}" if close else None
        if "auto_map" in data:
            hint = "its code comes with the checkpoint: pass --trust-remote-code to run it"
        raise SourceError(f"config has the unknown model type {model_type!r}", hint)
    data.pop("quantization_config", None)  # the source already speaks plain tensors
    data.pop(HEADS, None)  # they are attached to the model when it is there
    with border:
        # JSON has no infinity: transformers writes such a number as an object.
        data = PreTrainedConfig._decode_special_floats(data)
        config = CONFIG_MAPPING[model_type].from_dict(data)
    config.dtype = torch.float32
    return config


def model_class(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> type[nn.Module]:
    """The causal language model class of a config."""
    mapping: Any = AutoModelForCausalLM._model_mapping
    if type(config) not in mapping and not trust_remote_code:
        inner = _class_of_part(config)
        if inner is not None:
            return inner
        raise UnsupportedModel(
            f"{config.model_type!r} is not a causal language model of transformers",
            "only models of AutoModelForCausalLM can be exported",
        )
    found: Any = mapping[type(config)]
    return found[0] if isinstance(found, tuple) else found


def _class_of_part(config: PreTrainedConfig) -> type[nn.Module] | None:
    """The causal model that was saved with the text part of a larger config."""
    mapping: Any = AutoModelForCausalLM._model_mapping
    package = type(config).__module__.rpartition(".")[0]
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if f"transformers.models.{model_type_to_module_name(model_type)}" != package:
            continue
        whole = CONFIG_MAPPING[model_type]
        found: Any = mapping[whole]
        if getattr(found, "config_class", None) is type(config):
            return found
    return None


class _EmptyOnMeta(TorchFunctionMode):
    """Sends torch.empty, the storage of parameters, to meta; buffers made from values stay real."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        known = dict(kwargs or {})
        if function is torch.empty:
            known["device"] = "meta"
        return function(*args, **known)


def build_model(config: PreTrainedConfig, *, trust_remote_code: bool = False) -> nn.Module:
    """The model in float32 with storage-free parameters; inside the attention hooks only."""
    make: Any = AutoModelForCausalLM.from_config
    has_class = type(config) in AutoModelForCausalLM._model_mapping
    inner: Any = None if has_class else _class_of_part(config)
    known = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
    if inner is not None:
        make, known = inner._from_config, {"dtype": torch.float32}
    border = LibraryBorder(UnsupportedModel, f"{config.model_type} cannot be built", CONFIG_HINT)
    ways = _attention_ways(config, trust_remote_code)
    for attention in ways:
        try:
            with border, _EmptyOnMeta(), torch.no_grad():
                model = make(copy.deepcopy(config), attn_implementation=attention, **known)
        except UnsupportedModel:  # a model may refuse a way by its name
            if attention == ways[-1]:
                raise
            continue
        break
    return _fake_parameters(model.eval())


def _attention_ways(config: PreTrainedConfig, trust_remote_code: bool) -> list[str]:
    # A model that does not use the interface takes any name and then ignores our function, so the
    # choice goes by what its code calls.
    try:
        known = model_class(config, trust_remote_code=trust_remote_code)
    except KeyError:  # code from the checkpoint
        return [NAME, "sdpa", "eager"]
    text = inspect.getsource(sys.modules[known.__module__])
    # Eager comes before sdpa: there the model's own mask is always written out.
    return [NAME, "sdpa", "eager"] if "ALL_ATTENTION_FUNCTIONS" in text else ["eager", "sdpa"]


def _fake_parameters(model: nn.Module) -> nn.Module:
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    made: dict[int, nn.Parameter] = {}  # tied parameters stay one
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in made:
                shape = torch.empty_like(parameter.detach(), device="meta")
                fake = FakeTensor(mode, shape, torch.device("cpu"))
                made[id(parameter)] = nn.Parameter(fake, requires_grad=False)
            module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device.type == "meta":
                # A buffer without a value of its own comes from the checkpoint.
                module._buffers[name] = FakeTensor(mode, buffer, torch.device("cpu"))
    return model


def fake_mode_of(model: nn.Module) -> FakeTensorMode:
    """The mode that the model's parameters live in."""
    first = next(model.parameters())
    assert isinstance(first.data, FakeTensor), "the model was not built by build_model"
    return first.data.fake_mode
