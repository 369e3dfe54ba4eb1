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

# What QEfficient has besides, and what to use here instead.
ELSEWHERE = {
    "QEFFAutoModel": "embedding models are not run",
    "QEFFAutoModelForImageTextToText": "models of images are not run",
    "QEFFAutoModelForSpeechSeq2Seq": "models of speech are not run",
    "QEffAutoLoraModelForCausalLM": "merge an adapter into its model, and take the merged folder",
    "QEffAutoPeftModelForCausalLM": "merge an adapter into its model, and take the merged folder",
    "QEFFCommonLoader": "use QEFFAutoModelForCausalLM",
}


def __getattr__(name: str) -> Any:
    if name in ELSEWHERE:
        # ``from QEfficient import`` shows the words of an ImportError only.
        raise ImportError(f"QEfficient.{name} is not part of qeff: {ELSEWHERE[name]}")
    if name not in __all__:
        raise AttributeError(
            f"QEfficient.{name} is not offered by qeff {__version__}; offered: {', '.join(__all__)}"
        )
    return getattr(qeff, name)
