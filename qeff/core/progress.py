"""Progress of long work, told through one callback.

A room that works for more than a moment takes ``progress`` and calls it; what is shown, and
whether anything is, is the caller's business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("qeff")


@dataclass(frozen=True, slots=True)
class Event:
    """A stage (``export``, ``pack``) and how far it is; ``total`` is None while unknown."""

    stage: str
    done: int = 0
    total: int | None = None
    unit: str = "bytes"


Progress = Callable[[Event], None]


def silent(event: Event) -> None:
    """The default listener: hears nothing."""
