"""Plans of large tiles: their programs fit into the shared memory of a multiprocessor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

LIMIT = 227 * 1024  # bytes that a program may have on Hopper


def test_programs_fit_into_shared_memory(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_DISABLE_LINE_INFO": "1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).parent / "cuda_shared.py")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 5 and min(found.values()) > LIMIT // 2
    assert {case: size for case, size in found.items() if size > LIMIT} == {}
