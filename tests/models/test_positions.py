"""Models that look positions up: how many there are is known, and told before it is too late."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from architectures import tiny_config

from qeff.compile.compiler import compile_graph
from qeff.compile.positions import num_positions
from qeff.container import Container
from qeff.core.errors import RequestError
from qeff.core.options import CompileOptions, ExportOptions
from qeff.export.artifact import Graph
from qeff.export.exporter import draw
from qeff.runtime import Batch, Span, open_session
from qeff.transform.reference import make_twin


def graph_of(row: str, folder: Path) -> Graph:
    twin = make_twin(tiny_config(row), folder / "checkpoint", ExportOptions())
    assert twin.prepared is not None
    return draw(twin.prepared)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("gpt2", 64),
        ("opt", 64),  # two rows of its table are for no position
        ("roberta", 62),  # and two of this one, of 64
        ("llama", None),
        ("bloom", None),
    ],
)
def test_the_rows_of_the_table(row: str, expected: int | None, tmp_path: Path) -> None:
    assert num_positions(graph_of(row, tmp_path).model) == expected


def test_a_context_longer_than_the_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of("gpt2", tmp_path)

    def build(ctx_len: int) -> Path:
        options = CompileOptions(target="ort", ctx_len=ctx_len, prefill_seq_len=32)
        out = tmp_path / str(ctx_len)
        return compile_graph(graph, options, text_files={}, provenance={}, out=out)

    with caplog.at_level(logging.WARNING, "qeff"):
        build(64)
        assert "positions" not in caplog.text
        container = Container.open(build(128))
    assert "a table of 64 positions" in caplog.text
    session = open_session(container)
    session.reserve(1)
    try:
        for start in (60, 64):
            step = Batch(
                np.arange(4), np.arange(start, start + 4), (Span(0, 4, (0,)),), np.arange(4)
            )
            if start + 4 <= 64:
                assert np.isfinite(session.step(step).logits).all()
                continue
            with pytest.raises(RequestError, match=r"cannot run this step.*64"):
                session.step(step)
    finally:
        session.close()
