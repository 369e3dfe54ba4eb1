"""The program run op by op with numpy: slow, right, always there."""

from __future__ import annotations

__all__: list[str] = []
