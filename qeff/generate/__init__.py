"""Requests in, tokens and text out: scheduling, cache blocks, sampling, streaming.

Takes an opened session and, for text, a container's tokenizer files. Knows nothing of graphs,
checkpoints or devices, and imports with numpy, tokenizers and jinja2 alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qeff.generate.async_engine import AsyncEngine
    from qeff.generate.constraint import Constraint
    from qeff.generate.engine import Engine
    from qeff.generate.request import Delta, FinishReason, Request, Result, SamplingParams
    from qeff.generate.speculation.config import SpeculationConfig
    from qeff.generate.text import Text

__all__ = [
    "AsyncEngine",
    "Constraint",
    "Delta",
    "Engine",
    "FinishReason",
    "Request",
    "Result",
    "SamplingParams",
    "SpeculationConfig",
    "Text",
]

_HOMES = {
    "AsyncEngine": "async_engine",
    "Constraint": "constraint",
    "Delta": "request",
    "Engine": "engine",
    "FinishReason": "request",
    "Request": "request",
    "Result": "request",
    "SamplingParams": "request",
    "SpeculationConfig": "speculation.config",
    "Text": "text",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
