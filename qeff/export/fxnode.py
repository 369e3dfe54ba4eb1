"""The node and graph of a traced program; type checkers see them without torch's unions.

At run time they are torch's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    class Node:
        """A node whose every part is of any type."""

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    Graph = Any
else:
    from torch.fx import Graph, Node

__all__ = ["Graph", "Node"]
