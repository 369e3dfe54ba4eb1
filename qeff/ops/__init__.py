"""The language of the program: what each op takes, gives and means, one file per kind.

Takes shapes, attributes and arrays; gives shape rules, numpy references and costs. Knows nothing of
graphs, files or devices. An op kind is found by its file's name.
"""

from __future__ import annotations

from qeff.ops.base import Arg, Cost, OpKind, Step
from qeff.ops.registry import kinds
from qeff.ops.validation import validate

__all__ = ["Arg", "Cost", "OpKind", "Step", "kinds", "validate"]
