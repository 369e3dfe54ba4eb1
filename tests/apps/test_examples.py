"""The examples run as they are, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import qeff

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))


def test_examples_are_few_and_short() -> None:
    assert len(SCRIPTS) <= 7
    for name in SCRIPTS:
        assert len((EXAMPLES / name).read_text().splitlines()) < 40


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_runs(name: str, tiny: Path, cache: Path, environment: dict[str, str]) -> None:
    argument = str(tiny)
    if name == "run_container.py":
        options = qeff.CompileOptions(ctx_len=256)
        argument = str(qeff.build(argument, qeff.ExportOptions(), options))
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), argument],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        errors="replace",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
