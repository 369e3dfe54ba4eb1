"""The version of what makes graphs and containers: the release, and a digest of the build half.

A release number alone would let a changed checkout find results that older code made. The digest is
over the bytes of the source files, so it is the same on every machine.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from qeff._version import __version__

BUILD_HALF = (
    "core", "ops", "sources", "transform", "export", "compile", "container", "backends",
)  # fmt: skip
DIGEST_LEN = 8


@cache
def build_version() -> str:
    """The release and the digest, such as ``0.1.0+5f0c9a1b``."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for room in BUILD_HALF:
        for path in sorted((root / room).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:DIGEST_LEN]}"
