"""Mixtures of experts: one op when the activation has a known form, else a dense traced form.

Transformers gives every expert module the same face (stacked weights, ``_apply_gate``); the form of
the activation is found by running it on random data. Knows nothing about routers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from qeff.core.errors import UnsupportedModel
from qeff.transform.ops import ACTIVATIONS, gated, moe_form
from qeff.transform.patch import patched_attr, patched_item
from qeff.transform.trace import Trace

NAME = "qeff"


@contextmanager
def experts_hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Expert modules go through one op."""
    table = type(ALL_EXPERTS_FUNCTIONS)._global_mapping
    with ExitStack() as stack:
        stack.enter_context(patched_item(table, NAME, _experts_function(trace)))
        for module in model.modules():
            if hasattr(module, "_apply_gate") and hasattr(module, "config"):
                patch = patched_attr(module.config, "_experts_implementation_internal", NAME)
                stack.enter_context(patch)
        yield


def _experts_function(trace: Trace) -> Callable[..., Tensor]:
    forms: dict[Any, str | None] = {}

    def forward(module: Any, x: Tensor, index: Tensor, weight: Tensor, **kwargs: Any) -> Tensor:
        up = "gate_up" if module.has_gate else "up"
        matrices = getattr(module, f"{up}_proj"), module.down_proj
        biases: tuple[Tensor | None, Tensor | None] = (None, None)
        if module.has_bias:
            biases = getattr(module, f"{up}_proj_bias"), module.down_proj_bias
        key = id(module)
        if key not in forms:
            with _disable_current_modes(), torch.no_grad():
                forms[key] = probe(module)
        form = forms[key]
        if form is None or getattr(module, "has_post_expert_norm", False):
            trace.note("experts dense")
            return _dense(module, x, index, weight, matrices, biases)
        trace.note(f"experts {form}")
        return torch.ops.qeff.moe(x, index, weight.to(x.dtype), *matrices, *biases, form)

    return forward


def probe(module: Any) -> str | None:
    """The form whose numbers equal the module's own activation, or None."""
    x = torch.randn(4, 48, generator=torch.Generator().manual_seed(2)) * 6
    gates = ("half", "interleaved") if module.has_gate else ("none",)
    y = module._apply_gate(x) if module.has_gate else module.act_fn(x)
    alpha, limit = _number(module, "alpha"), _number(module, "limit")
    names = [*ACTIVATIONS, *(["swiglu_clamped"] if module.has_gate and alpha and limit else [])]
    for gate, name in itertools.product(gates, names):
        ours = gated(x, gate, name, alpha, limit)
        if ours.shape == y.shape and torch.allclose(ours, y, atol=1e-5):
            return moe_form(gate, name, alpha, limit, module.is_transposed)
    return None


def activation_form(function: Callable[[Tensor], Tensor]) -> str:
    """The form of experts whose first half of outputs goes through a function of one value."""
    with _disable_current_modes(), torch.no_grad():
        x = torch.randn(64, generator=torch.Generator().manual_seed(2)) * 6
        for name, ours in ACTIVATIONS.items():
            if torch.allclose(ours(x), function(x), atol=1e-5):
                return moe_form("half", name, 0.0, 0.0, transposed=False)
    raise UnsupportedModel(f"experts with the activation {function} cannot be exported yet")


def _number(module: Any, name: str) -> float:
    value = getattr(module, name, None)
    return float(value) if isinstance(value, int | float) else 0.0


def _dense(
    module: Any,
    x: Tensor,
    index: Tensor,
    weight: Tensor,
    matrices: tuple[Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None],
) -> Tensor:
    """Every expert on every token, weighted: exact for any activation, but all experts run."""
    num_experts = matrices[0].shape[0]
    shares = torch.zeros(x.shape[0], num_experts, dtype=x.dtype)
    shares = shares.scatter(1, index, weight.to(x.dtype))  # [T, E]

    def linear(value: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        out = value @ (matrix if module.is_transposed else matrix.transpose(1, 2))
        return out if bias is None else out + bias[:, None]

    hidden = linear(x[None], matrices[0], biases[0])  # [E, T, out]
    hidden = module._apply_gate(hidden) if module.has_gate else module.act_fn(hidden)
    out = linear(hidden, matrices[1], biases[1])  # [E, T, width]
    if getattr(module, "has_post_expert_norm", False):
        out = module.post_expert_norm(out)
    return (out * shares.t()[:, :, None]).sum(0)
