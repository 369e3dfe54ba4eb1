"""Rotary functions found by their numbers: a model's own function is run and compared with one op.

Any function of a model's module that takes ``cos`` and ``sin`` (or complex ``freqs_cis``) is
wrapped; at its first call of a shape it is run on random data, and a known form takes its place.
A function that equals none is traced as it is written. Rows of a batch whose frequencies depend
on their length get them row by row (see :func:`rotary_module_hooks`).
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from qeff.transform.patch import patched_attr
from qeff.transform.trace import Trace

# How cos and sin hold the R angles of a rotation: twice one after another, each twice, or once.
SPREAD: dict[str, Callable[[Tensor], Tensor]] = {
    "cat": lambda t: torch.cat([t, t], -1),
    "pairs": lambda t: t.repeat_interleave(2, -1),
    "once": lambda t: t,
}
GATHER: dict[str, Callable[[Tensor], Tensor]] = {
    "cat": lambda t: t[..., : t.shape[-1] // 2],
    "pairs": lambda t: t[..., 0::2],
    "once": lambda t: t,
}


@dataclass(frozen=True, slots=True)
class RopeForm:
    """How a model's rotary function equals the op."""

    interleaved: bool
    unzip: bool  # pairs are pulled apart first, then rotated as halves
    heads_last: bool  # x is [B, S, H, D]


@contextmanager
def rope_hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Recognised rotary functions go through one op."""
    layouts = _layouts(model)
    with ExitStack() as stack:
        for module in {sys.modules[type(m).__module__] for m in model.modules()}:
            for name, function in list(vars(module).items()):
                roles = _roles(function)
                if roles is not None:
                    wrapped = _Wrapper(function, roles, layouts, trace)
                    stack.enter_context(patched_attr(module, name, wrapped))
        yield


@dataclass(frozen=True, slots=True)
class _Roles:
    signature: inspect.Signature
    states: tuple[str, ...]  # parameters that are rotated
    is_complex: bool


def _roles(function: Any) -> _Roles | None:
    if not inspect.isfunction(function):
        return None
    signature = inspect.signature(function)
    names = list(signature.parameters)
    if {"cos", "sin"} <= set(names):
        first = min(names.index("cos"), names.index("sin"))
        states = tuple(names[:first])
        return _Roles(signature, states, False) if 1 <= len(states) <= 2 else None
    if names[2:3] == ["freqs_cis"]:
        return _Roles(signature, tuple(names[:2]), True)
    return None


class _Wrapper:
    """Stands where a model's rotary function stood."""

    def __init__(self, function: Any, roles: _Roles, layouts: dict[int, str], trace: Trace) -> None:
        self.function, self.roles, self.layouts, self.trace = function, roles, layouts, trace
        self.forms: dict[Any, RopeForm | None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self.roles.signature.bind(*args, **kwargs).arguments
        states = [given[name] for name in self.roles.states if given.get(name) is not None]
        form, layout = self._form(given, states)
        if form is None:
            if not self.trace.is_probing:
                self.trace.note(f"rope left as {self.function.__name__}")
            return self.function(*args, **kwargs)
        self.trace.note("rope")
        cos, sin = self._angles(given, layout, states[0].shape[0])
        out = tuple(rotate(x, cos, sin, form) for x in states)
        return out if len(self.roles.states) > 1 else out[0]

    def _form(self, given: dict[str, Any], states: list[Tensor]) -> tuple[RopeForm | None, str]:
        names = {*self.roles.states, "cos", "sin", "freqs_cis"}
        rest = {k: v for k, v in given.items() if k not in names and v is not None}
        cos: Any = given.get("freqs_cis" if self.roles.is_complex else "cos")
        plain = all(isinstance(v, int) for v in rest.values()) and isinstance(cos, Tensor)
        if not plain or cos.dim() != 3 or any(x.dim() != 4 for x in states):
            return None, ""
        width = int(cos.shape[-1])
        layout = "once" if self.roles.is_complex else self.layouts.get(width, "once")
        key = (int(states[0].shape[-1]), width, layout, len(states), tuple(rest.items()))
        if key not in self.forms:
            probing = patched_attr(self.trace, "is_probing", True)
            with probing, _disable_current_modes(), torch.no_grad():
                self.forms[key] = self._probe(key[0], width, layout, rest)
        return self.forms[key], layout

    def _probe(self, dim: int, width: int, layout: str, rest: dict[str, Any]) -> RopeForm | None:
        seed = torch.Generator().manual_seed(1)
        angles = torch.randn(2, 5, width if layout == "once" else width // 2, generator=seed)
        cos, sin = angles.cos(), angles.sin()
        if self.roles.is_complex:
            table = {"freqs_cis": torch.complex(cos, sin)}
        else:
            table = {"cos": SPREAD[layout](cos), "sin": SPREAD[layout](sin)}
        for heads_last in (False, True):
            shape = (2, 5, 3, dim) if heads_last else (2, 3, 5, dim)
            states = [torch.randn(shape, generator=seed) for _ in self.roles.states]
            try:
                own = self.function(
                    **dict(zip(self.roles.states, states, strict=True)), **table, **rest
                )
            except (RuntimeError, TypeError, ValueError, IndexError):
                continue  # the function wants the other order of axes
            own = own if isinstance(own, tuple) else (own,)
            for form in _candidates(dim, 2 * angles.shape[-1], heads_last):
                ours = [rotate(x, cos, sin, form) for x in states]
                if len(own) == len(ours) and all(map(_close, own, ours)):
                    return form
        return None

    def _angles(self, given: dict[str, Any], layout: str, batch: Any) -> tuple[Tensor, Tensor]:
        names = ("freqs_cis",) if self.roles.is_complex else ("cos", "sin")
        tables = tuple(given[name] for name in names)
        memo = self.trace.step.memo if self.trace.step is not None else {}
        key = ("rope", *map(id, tables))
        if key not in memo:
            cos, sin = (tables[0].real, tables[0].imag) if self.roles.is_complex else tables
            pair = [GATHER[layout](t).expand(batch, -1, -1) for t in (cos, sin)]  # [B, S, R]
            memo[key] = (*pair, tables)  # the tables are kept, so that their ids stay theirs
        return memo[key][0], memo[key][1]


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, atol=1e-5)


def _candidates(dim: int, rotated: int, heads_last: bool) -> Iterator[RopeForm]:
    if dim % 2 or rotated > dim:
        return
    yield RopeForm(False, False, heads_last)
    yield RopeForm(True, False, heads_last)
    if rotated == dim:
        yield RopeForm(False, True, heads_last)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, form: RopeForm) -> Tensor:
    """The op on a model's own layout of x."""
    x = x.transpose(1, 2) if form.heads_last else x  # [B, H, S, D]
    if form.unzip:
        pairs = x.unflatten(-1, (x.shape[-1] // 2, 2))  # [B, H, S, D/2, 2]
        x = pairs.transpose(-1, -2).flatten(-2)
    y = torch.ops.qeff.rope(x, cos, sin, form.interleaved)
    return y.transpose(1, 2) if form.heads_last else y


def _layouts(model: nn.Module) -> dict[int, str]:
    """How rotary modules lay out cos, by its width; a width seen in two ways is left out."""
    found: dict[int, set[str]] = {}
    with _disable_current_modes(), torch.no_grad():
        for module in model.modules():
            if not hasattr(module, "rope_type") and "Rotary" not in type(module).__name__:
                continue
            for cos in _sample_cos(module):
                n = cos.shape[-1] // 2
                if torch.equal(cos[..., :n], cos[..., n:]):
                    layout = "cat"
                elif torch.equal(cos[..., 0::2], cos[..., 1::2]):
                    layout = "pairs"
                else:
                    layout = "once"
                found.setdefault(cos.shape[-1], set()).add(layout)
    return {width: next(iter(kinds)) for width, kinds in found.items() if len(kinds) == 1}


def _sample_cos(module: nn.Module) -> Iterator[Tensor]:
    takes_kind = "layer_type" in inspect.signature(module.forward).parameters
    kinds = sorted(set(getattr(module, "layer_types", None) or ())) if takes_kind else [None]
    for kind in kinds:
        extra = {"layer_type": kind} if kind is not None else {}
        try:
            out = module(torch.zeros(1, 4, 8), torch.arange(1, 5)[None], **extra)
        except (RuntimeError, TypeError, ValueError, AttributeError, KeyError):
            continue  # not called in the usual way: its function is traced as written
        if isinstance(out, tuple) and isinstance(out[0], Tensor) and out[0].dim() == 3:
            yield out[0]


@contextmanager
def rotary_module_hooks(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Frequencies that depend on a sequence's length are chosen for each row of a batch.

    Transformers' ``longrope`` looks at the largest position of the whole batch, so a short row
    would change with its neighbours. Here each row is turned by both tables and takes its own.
    """
    with ExitStack() as stack:
        for module in model.modules():
            if getattr(module, "rope_type", None) != "longrope":
                continue
            trace.note("longrope by row")
            forward = types.MethodType(_longrope_forward(module), module)
            stack.enter_context(patched_attr(module, "forward", forward))
        yield


def _longrope_forward(module: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    raw = inspect.unwrap(type(module).forward)  # without the choice by the whole batch
    limit = module.config.rope_parameters["original_max_position_embeddings"]
    with _disable_current_modes():
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        long, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, "cpu", seq_len=limit + 1)
    short = module.original_inv_freq
    if torch.equal(short, long):
        return raw

    def forward(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        tables = []
        for frequencies in (short, long):
            with patched_attr_buffer(self, "inv_freq", frequencies):
                tables.append(raw(self, x, position_ids))
        is_long = (position_ids.amax(-1) + 1 > limit)[:, None, None]  # [B, 1, 1]
        (cos, sin), (long_cos, long_sin) = tables
        return torch.where(is_long, long_cos, cos), torch.where(is_long, long_sin, sin)

    return forward


@contextmanager
def patched_attr_buffer(module: nn.Module, name: str, value: Tensor) -> Iterator[None]:
    """A buffer of a module replaced until the context ends."""
    before = module._buffers[name]
    module._buffers[name] = value
    try:
        yield
    finally:
        module._buffers[name] = before
