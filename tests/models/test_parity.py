"""Every architecture of the table: eager PyTorch = ONNX Runtime = the program = the native engine.

A ragged prefill, four decode steps and a chunk of three, in cache slots that are not the rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers
from architectures import ROWS, tiny_config
from ladder import climb
from packaging.version import Version
from transformers import AutoConfig

from qeff.core.options import ExportOptions
from qeff.export.exporter import draw
from qeff.export.parity import GraphRunner
from qeff.export.standalone import materialize
from qeff.transform.reference import make_twin

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


# In transformers 5.17 the eager model itself is wrong or does not run: masks that look ahead in a
# decoder, a sum with None, a rotation table of no entries. Later releases have it right.
WRONG_IN_OLD_TRANSFORMERS = {"big_bird", "roformer", "git", "cohere_compass_text"}
IS_OLD = Version(transformers.__version__) < Version("5.22")


def check(row: str, folder: Path, *, continuous: bool) -> None:
    ladder = climb(tiny_config(row), folder, continuous=continuous)
    for found in (ladder.onnx, ladder.program, ladder.native):
        assert found is not None
        assert found.max_abs_error <= MAX_ABS_ERROR
        assert found.equal_tokens == found.tokens
    ops = ladder.graph.describe()["ops"]
    for name, count in OPS.get(row, {}).items():
        assert ops.get(name) == count, ops
    # Attention is one op, written out by nobody.
    num_attentions = ops.get("Attention", 0) + ops.get("qeff.SinkAttention", 0)
    assert num_attentions >= len(ladder.graph.spec.caches)
    for node in ladder.graph.model.graph:
        assert all(v.shape is not None and v.dtype is not None for v in node.outputs), node.name


@pytest.mark.parametrize("row", ROWS)
def test_continuous(row: str, tmp_path: Path) -> None:
    if IS_OLD and row in WRONG_IN_OLD_TRANSFORMERS:
        pytest.skip("eager itself is wrong in this release of transformers")
    check(row, tmp_path, continuous=True)


@pytest.mark.parametrize("row", ["llama-tied", "gpt2", "bloom", "gemma3n_text"])
def test_row_is_slot(row: str, tmp_path: Path) -> None:
    check(row, tmp_path, continuous=False)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_mask_made_from_values(seed: int, tmp_path: Path) -> None:
    """Only the graph can say such a mask; more keys than it keeps, so that some are dropped.

    No token comes twice: equal tokens have equal entries, and which of them stays is left open.
    """
    config = AutoConfig.for_model("doge", **ROWS["llama"][1], keep_window_size=6)
    reference = make_twin(config, tmp_path / "checkpoint", ExportOptions())
    assert reference.prepared is not None
    graph = draw(reference.prepared)
    runner = GraphRunner(materialize(graph, tmp_path / "standalone"), graph)
    steps = [[5, 1, 1, 3], [9, 1, 1, 3]]
    draws = np.random.default_rng(seed)
    rows = [(3 + draws.permutation(120)[: sum(lens)]).tolist() for lens in steps]
    for row, lens, got in zip(rows, steps, runner.run(rows, steps), strict=True):
        assert np.abs(got - reference.logits(row, lens)).max() <= MAX_ABS_ERROR
