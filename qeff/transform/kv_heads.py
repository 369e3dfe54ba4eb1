"""Which tensors of a checkpoint hold heads of keys and values: those whose shape follows the count.

The model is built from its config twice, without storage, once with more such heads; whatever
tensor grows is one of theirs. Knows no names of tensors and no architecture. What cannot be
understood in this way is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from qeff.core.errors import OptionValueError, UnsupportedModel
from qeff.sources import Source
from qeff.transform.attention import attention_hooks
from qeff.transform.build import build_model, read_config
from qeff.transform.expression import Leaf
from qeff.transform.shrink import KV_HEADS, QUERY_HEADS
from qeff.transform.trace import Trace
from qeff.transform.weights import weight_map

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Replication:
    """How a checkpoint changes: counts of its config, and heads along the first axis of tensors."""

    counts: Mapping[str, int]  # of the config: name and new value
    heads: Mapping[str, int]  # of the checkpoint: tensor name and how many heads it holds


def find_replication(
    source: Source, repeat: int, *, trust_remote_code: bool = False
) -> Replication:
    """What becomes of a checkpoint whose heads of keys and values are each there ``repeat`` times.

    Raises UnsupportedModel for a model that keeps them in another way, and OptionValueError for a
    number that does not fit it.
    """
    if source.config.get("quantization_config"):
        raise UnsupportedModel(
            f"{source.name} is quantised, and packed heads cannot be repeated",
            "take the checkpoint that it was made from",
        )
    config = read_config(source, trust_remote_code=trust_remote_code)
    text: Any = config.get_text_config(decoder=True)
    counts = {name: getattr(text, name, None) for name in KV_HEADS}
    known = {name: count for name, count in counts.items() if type(count) is int and count > 0}
    num_heads = next((v for n in QUERY_HEADS if type(v := getattr(text, n, None)) is int), None)
    if not known or num_heads is None:
        raise UnsupportedModel(
            f"the config of {config.model_type} counts no heads of keys and values",
            "only models whose query heads share keys and values can be changed",
        )
    for name, count in known.items():
        _check_count(name, count, num_heads, repeat)
    model = _build(config, {}, trust_remote_code)
    stored, _ = weight_map(model, source.tensors)
    before = _shapes(model)
    heads: dict[str, int] = {}
    for name, count in known.items():
        after = _shapes(_build(config, {name: count * repeat}, trust_remote_code))
        for parameter in _grown(before, after, repeat):
            origin = stored.get(parameter)
            if not isinstance(origin, Leaf) or origin.shape != before[parameter]:
                raise UnsupportedModel(
                    f"{parameter} is made of several tensors of the checkpoint",
                    "save the checkpoint with transformers' save_pretrained first",
                )
            heads[origin.name] = count
    if not heads:
        raise UnsupportedModel(
            f"no tensor of {config.model_type} has the size of its heads of keys and values",
            "a model that keeps them in a latent form has nothing to repeat",
        )
    return Replication({name: count * repeat for name, count in known.items()}, heads)


def _check_count(name: str, count: int, num_heads: int, repeat: int) -> None:
    if repeat >= 2 and num_heads % (count * repeat) == 0:
        return
    share = num_heads // count
    fitting = [str(n) for n in range(2, share + 1) if num_heads % (count * n) == 0]
    hint = f"numbers that fit: {', '.join(fitting)}" if fitting else "there is nothing to repeat"
    raise OptionValueError(
        f"{num_heads} query heads cannot share {name} {count} times {repeat} evenly", hint
    )


def _build(
    config: PreTrainedConfig, counts: Mapping[str, int], trust_remote_code: bool
) -> nn.Module:
    config = copy.deepcopy(config)
    for name, count in counts.items():
        setattr(config.get_text_config(decoder=True), name, count)
    with attention_hooks(Trace()):
        return build_model(config, trust_remote_code=trust_remote_code)


def _shapes(model: nn.Module) -> Shapes:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def _grown(before: Shapes, after: Shapes, repeat: int) -> list[str]:
    """The parameters that hold heads along their first axis and nothing else."""
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())[0]
        raise UnsupportedModel(f"{odd} is there or not by the number of heads")
    found = [name for name, shape in before.items() if after[name] != shape]
    for name in found:
        rows, *rest = before[name]
        if after[name] != (rows * repeat, *rest):
            raise UnsupportedModel(
                f"{name} holds more than heads of keys or of values",
                "queries, keys and values must be tensors of their own",
            )
    return found
