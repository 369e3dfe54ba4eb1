"""The machine's own limits: memory read bandwidth and 8-bit multiply-accumulates a second.

Compiles ``limits.c`` with the machine's C compiler, for exactly this processor, and runs it.
"""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("limits.c")
BUFFER_MB = 512  # far larger than the caches of the machines this is meant for
SECONDS = 1.0


def build(folder: Path) -> Path:
    """The program, compiled into ``folder``."""
    program = folder / "limits"
    native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
    command = ["cc", "-O3", native, "-pthread", str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def measure(program: Path, threads: int) -> dict[str, Any]:
    """One measurement with this many threads."""
    command = [str(program), str(threads), str(BUFFER_MB), str(SECONDS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)
