"""Any Hugging Face transformer: checkpoint to ONNX graph to compiled container to text.

This face only names things. What a name needs is imported when the name is used, so that ``import
qeff`` costs nothing and a machine that only runs containers never loads torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qeff._version import __version__

if TYPE_CHECKING:
    from qeff.apps.api import QEFFAutoModelForCausalLM
    from qeff.apps.kv_heads import replicate_kv_heads
    from qeff.apps.pipeline import build
    from qeff.apps.results import CloudAI100ExecInfo, PerfMetrics
    from qeff.container import Container
    from qeff.core.errors import QeffError
    from qeff.core.options import CompileOptions, ExportOptions
    from qeff.generate import (
        AsyncEngine,
        Constraint,
        Engine,
        Request,
        SamplingParams,
        SpeculationConfig,
        Text,
    )
    from qeff.runtime import open_session
    from qeff.sources import open_source

_HOMES = {
    "QEFFAutoModelForCausalLM": "qeff.apps.api",
    "build": "qeff.apps.pipeline",
    "replicate_kv_heads": "qeff.apps.kv_heads",
    "CloudAI100ExecInfo": "qeff.apps.results",
    "PerfMetrics": "qeff.apps.results",
    "Container": "qeff.container",
    "QeffError": "qeff.core.errors",
    "CompileOptions": "qeff.core.options",
    "ExportOptions": "qeff.core.options",
    "AsyncEngine": "qeff.generate",
    "Constraint": "qeff.generate",
    "Engine": "qeff.generate",
    "Request": "qeff.generate",
    "SamplingParams": "qeff.generate",
    "SpeculationConfig": "qeff.generate",
    "Text": "qeff.generate",
    "open_session": "qeff.runtime",
    "open_source": "qeff.sources",
}

__all__ = [
    "AsyncEngine",
    "CloudAI100ExecInfo",
    "CompileOptions",
    "Constraint",
    "Container",
    "Engine",
    "ExportOptions",
    "PerfMetrics",
    "QEFFAutoModelForCausalLM",
    "QeffError",
    "Request",
    "SamplingParams",
    "SpeculationConfig",
    "Text",
    "__version__",
    "build",
    "open_session",
    "open_source",
    "replicate_kv_heads",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qeff' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
