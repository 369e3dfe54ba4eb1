"""QEfficient's names over ``qeff``, for scripts and documents that use them.

Holds no logic of its own. The commands are in ``QEfficient.cloud``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import qeff

if TYPE_CHECKING:
    from qeff import CloudAI100ExecInfo, PerfMetrics, QEFFAutoModelForCausalLM

__all__ = ["CloudAI100ExecInfo", "PerfMetrics", "QEFFAutoModelForCausalLM", "__version__"]

__version__ = qeff.__version__


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(
            f"QEfficient.{name} is not offered by qeff {__version__}; offered: {', '.join(__all__)}"
        )
    return getattr(qeff, name)
