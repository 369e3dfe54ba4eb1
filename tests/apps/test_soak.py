"""The soak of the generation engine, for a few seconds on the tiny model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import qeff
from qeff.apps.pipeline import build
from qeff.core.options import CompileOptions, ExportOptions

SOAK = Path(qeff.__file__).parent.parent / "benchmarks" / "soak.py"


def test_a_short_soak(tiny: Path, cache: Path, capsys, monkeypatch) -> None:

    spec = importlib.util.spec_from_file_location("soak", SOAK)
    assert spec is not None and spec.loader is not None
    soak = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "soak", soak)  # its dataclasses look themselves up there
    spec.loader.exec_module(soak)
    options = CompileOptions(ctx_len=128, prefill_seq_len=16, full_batch_size=6)
    container = build(tiny, ExportOptions(continuous_batching=True), options)
    words = ["--seconds", "5", "--threads", "1", "--pool", "20", "--pause", "0.01"]
    code = soak.main([str(container), *words])
    out = capsys.readouterr().out
    assert code == 0, out
    counts = dict(line.strip("| ").split(" | ") for line in out.splitlines() if " | " in line)
    for name in ("requests", "cut", "preemptions", "tokens reused", "tokens accepted"):
        assert int(counts[name]) > 0, name
