"""The native core through ctypes: ``libqeff`` and the C API of ``csrc/include/qeff.h``.

Loads the library when first asked for, checks that it speaks this release's API, and turns its
codes into this project's errors. Knows nothing of containers or batches.
"""

from __future__ import annotations

from qeff._native.library import Info, Library, load

__all__ = ["Info", "Library", "load"]
