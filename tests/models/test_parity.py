"""Every architecture of the table: eager PyTorch = the exported graph in ONNX Runtime.

A ragged prefill, four decode steps and a chunk of three, in cache slots that are not the rows.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from architectures import ROWS, tiny_config

from qeff.core.options import ExportOptions
from qeff.export.artifact import Graph
from qeff.export.exporter import draw
from qeff.export.materialize import materialize
from qeff.export.parity import compare
from qeff.transform.reference import EagerReference, make_twin

MAX_ABS_ERROR = 1e-4
# What the graph of a row must be made of, besides plain attention.
OPS = {
    "gemma3_text": {"qeff.WindowMask": 1},
    "mistral-window": {"qeff.WindowMask": 1},
    "llama4_text": {"qeff.ChunkMask": 1},
    "bloom": {"qeff.AlibiBias": 1},
    "mpt": {"qeff.AlibiBias": 1},
    "falcon-alibi": {"qeff.AlibiBias": 1},
    "mixtral": {"qeff.MoE": 2},
    "gpt_oss": {"qeff.SinkAttention": 2, "qeff.MoEBias": 2, "qeff.WindowMask": 1},
    "gemma3n_text": {"Attention": 4},
}


def drawn(row: str, folder: Path, *, continuous: bool) -> tuple[Graph, EagerReference]:
    options = ExportOptions(continuous_batching=continuous)
    reference = make_twin(tiny_config(row), folder / "checkpoint", options)
    assert reference.prepared is not None
    return draw(reference.prepared), reference


def check(row: str, folder: Path, *, continuous: bool) -> None:
    graph, reference = drawn(row, folder, continuous=continuous)
    found = compare(materialize(graph, folder / "standalone"), graph, reference)
    assert found.max_abs_error <= MAX_ABS_ERROR
    assert found.equal_tokens == found.tokens
    ops = graph.describe()["ops"]
    for name, count in OPS.get(row, {}).items():
        assert ops.get(name) == count, ops
    # Attention is one op, written out by nobody.
    assert ops.get("Attention", 0) + ops.get("qeff.SinkAttention", 0) >= len(graph.spec.caches)
    for node in graph.model.graph:
        assert all(v.shape is not None and v.dtype is not None for v in node.outputs), node.name


@pytest.mark.parametrize("row", ROWS)
def test_continuous(row: str, tmp_path: Path) -> None:
    check(row, tmp_path, continuous=True)


@pytest.mark.parametrize("row", ["llama-tied", "gpt2", "bloom", "gemma3n_text"])
def test_row_is_slot(row: str, tmp_path: Path) -> None:
    check(row, tmp_path, continuous=False)
