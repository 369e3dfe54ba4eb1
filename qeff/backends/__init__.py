"""One folder per target: ``lower.py`` builds, ``session.py`` runs; the two never import each other.

Found by folder name; nothing is imported here.
"""

from __future__ import annotations

__all__: list[str] = []
