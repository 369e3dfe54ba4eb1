"""Before anything imports Triton: without a GPU its kernels are interpreted."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
