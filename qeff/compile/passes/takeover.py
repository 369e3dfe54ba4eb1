"""Put a made value in the place of another: its name, type and users, graph outputs included."""

from __future__ import annotations

import onnx_ir as ir


def take_over(old: ir.Value, made: ir.Value) -> None:
    """Give ``made`` the name, type, shape and users of ``old``."""
    made.shape, made.type = old.shape, old.type
    name, old.name = old.name, None
    made.name = name
    old.replace_all_uses_with(made, replace_graph_outputs=True)
