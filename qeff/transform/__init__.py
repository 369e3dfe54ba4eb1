"""Source -> Prepared: a torch module whose caches are inputs and outputs, weights by reference.

Takes an opened checkpoint and export options; gives the hooked module, its spec and the origin of
every parameter. Knows nothing about ONNX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qeff.transform.artifact import Prepared
    from qeff.transform.pipeline import prepare

__all__ = ["Prepared", "prepare"]


def __getattr__(name: str) -> Any:
    if name == "prepare":
        from qeff.transform.pipeline import prepare

        return prepare
    if name == "Prepared":
        from qeff.transform.artifact import Prepared

        return Prepared
    raise AttributeError(name)
