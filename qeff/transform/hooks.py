"""All hooks together, installed for as long as a trace lasts.

Each is agnostic of the architecture; what one family needs besides lives in ``families/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from qeff.transform.attention import attention_hooks
from qeff.transform.experts import experts_hooks
from qeff.transform.families import find_family
from qeff.transform.norms import norm_hooks
from qeff.transform.positions import position_hooks
from qeff.transform.rope import rope_hooks, rotary_module_hooks
from qeff.transform.trace import Trace


@contextmanager
def hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Everything that makes a model trace into the ops of this room."""
    with ExitStack() as stack:
        stack.enter_context(attention_hooks(trace))
        stack.enter_context(position_hooks(model, trace))
        stack.enter_context(rotary_module_hooks(model, trace))
        stack.enter_context(rope_hooks(model, trace))
        stack.enter_context(norm_hooks(model, trace))
        stack.enter_context(experts_hooks(model, trace))
        for model_type in _model_types(model):
            family = find_family(model_type)
            if family is not None:
                stack.enter_context(family.hooks(model, trace))
        yield


def _model_types(model: nn.Module) -> list[str]:
    configs = (getattr(module, "config", None) for module in model.modules())
    found = {getattr(config, "model_type", None) for config in configs}
    return sorted(name for name in found if isinstance(name, str))
