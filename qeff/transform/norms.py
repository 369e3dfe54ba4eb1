"""Norm modules found by their numbers: a real copy is run and compared with known forms.

A module that equals RMS norm or layer norm, with weight w or 1 + w, gets the one op; a module that
equals none is traced as it is written, which is right and only longer. Knows no class names.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from qeff.transform.patch import patched_attr
from qeff.transform.trace import Trace

EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps", "layer_norm_eps")
WEIGHT_NAMES = ("weight", "gamma", "scale")


@dataclass(frozen=True, slots=True)
class NormForm:
    """Which norm a module computes."""

    kind: str  # rms or layer
    shift: float  # added to the weight
    weight: str | None  # the parameter's name
    eps: float


@contextmanager
def norm_hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Recognised norm modules go through one op."""
    known: dict[Any, NormForm | None] = {}
    with ExitStack() as stack:
        for module in model.modules():
            if not _may_be_norm(module):
                continue
            key = _key(module)
            if key not in known:
                known[key] = probe(module)
            form = known[key]
            if form is not None:
                trace.note(f"norm {form.kind}{'+1' if form.shift else ''}")
                forward = types.MethodType(_forward(form), module)
                stack.enter_context(patched_attr(module, "forward", forward))
        yield


def _may_be_norm(module: nn.Module) -> bool:
    if type(module).__module__.startswith("torch.") or next(module.children(), None) is not None:
        return False
    names = {name for name, _ in module.named_parameters(recurse=False)}
    if names - {*WEIGHT_NAMES, "bias"} or _eps(module) is None:
        return False
    if any(p.dim() != 1 for p in module.parameters(recurse=False)):
        return False
    return all(b.numel() <= 1 for b in module.buffers())


def _key(module: nn.Module) -> Any:
    shapes = tuple((n, tuple(p.shape)) for n, p in module.named_parameters(recurse=False))
    scalars = {k: v for k, v in vars(module).items() if isinstance(v, bool | int | float | str)}
    return type(module), shapes, tuple(sorted(scalars.items(), key=str))


def _eps(module: nn.Module) -> float | None:
    values = (getattr(module, name, None) for name in EPS_NAMES)
    return next((value for value in values if isinstance(value, float)), None)


def probe(module: nn.Module) -> NormForm | None:
    """Run a real copy on random data and find the form that gives the same numbers."""
    eps = _eps(module)
    assert eps is not None, "only modules with an epsilon are probed"
    params = dict(module.named_parameters(recurse=False))
    weight = next((n for n in WEIGHT_NAMES if n in params), None)
    width = params[weight].shape[0] if weight else 32
    with _disable_current_modes(), torch.no_grad():
        seed = torch.Generator().manual_seed(0)
        copy = _copy_with(
            module, {n: torch.randn(p.shape, generator=seed) + 1 for n, p in params.items()}
        )
        x = torch.randn(2, 3, width, generator=seed) * 3
        try:
            y = copy(x)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            return None  # it wants other arguments: not a plain norm
        if not isinstance(y, Tensor) or y.shape != x.shape:
            return None
        for form in _candidates(weight, eps):
            if torch.allclose(_forward(form)(copy, x), y, atol=1e-5, rtol=1e-5):
                return form
    return None


def _candidates(weight: str | None, eps: float) -> Iterator[NormForm]:
    for kind in ("rms", "layer"):
        for shift in (0.0, 1.0) if weight else (0.0,):
            yield NormForm(kind, shift, weight, eps)


def _copy_with(module: nn.Module, values: dict[str, Tensor]) -> nn.Module:
    copy = type(module).__new__(type(module))
    nn.Module.__init__(copy)
    copy.__dict__.update({k: v for k, v in vars(module).items() if not k.startswith("_")})
    copy._buffers.update(module._buffers)
    for name in module._parameters:
        value = values.get(name)
        copy.register_parameter(name, None if value is None else nn.Parameter(value, False))
    return copy.eval()


def _forward(form: NormForm) -> Callable[..., Tensor]:
    def forward(self: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        width = x.shape[-1]
        if form.weight is None:
            weight = torch.ones(width, dtype=x.dtype)
        else:
            weight = getattr(self, form.weight)
            weight = weight + form.shift if form.shift else weight
        bias = getattr(self, "bias", None)
        if form.kind == "layer":
            return F.layer_norm(x, (width,), weight, bias, form.eps)
        out = torch.ops.qeff.rms_norm(x, weight, form.eps)
        return out if bias is None else out + bias

    return forward
