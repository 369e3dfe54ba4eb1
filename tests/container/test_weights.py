"""The weights file: read back by the safetensors library, aligned, and refused when malformed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from sample import arrays, write

from qeff.container import Container
from qeff.container.weights import WeightSpec, lay_out, parse_header
from qeff.core.errors import ContainerError

SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)
SPECS = st.lists(
    st.tuples(SHAPES, st.sampled_from(["f32", "f16", "u8", "i64", "bool", "bf16"])), max_size=12
)


def test_safetensors_library_reads_the_same_values(tmp_path: Path) -> None:
    folder = write(tmp_path / "c")
    theirs = safetensors.numpy.load_file(folder / "weights.safetensors")
    ours = Container.open(folder)
    assert ours.weight_names == list(arrays())
    for name, array in arrays().items():
        np.testing.assert_array_equal(theirs[name], array)
        np.testing.assert_array_equal(ours.weight(name), array)
        assert ours.weight(name).ctypes.data % 64 == 0 or array.size == 0
        assert not ours.weight(name).flags.writeable


@given(SPECS)
def test_layout_is_read_back_and_every_tensor_is_aligned(specs) -> None:
    layout = lay_out(WeightSpec(f"t{i}", shape, kind) for i, (shape, kind) in enumerate(specs))
    entries = parse_header(layout.header[8:], layout.num_bytes, "w")
    assert list(entries.values()) == list(layout.entries)
    assert all(entry.start % 64 == 0 for entry in layout.entries)


def header(**changes) -> bytes:
    row = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} | changes
    text = json.dumps({"t": row}).encode()
    return text + b" " * (-(len(text) + 8) % 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"data_offsets": [0, 12]},
        {"data_offsets": [16, 32]},
        {"data_offsets": [16, 0]},
        {"data_offsets": [-16, 0]},
        {"data_offsets": [0]},
        {"data_offsets": ["0", "16"]},
        {"shape": [2]},
        {"shape": [-4]},
        {"shape": [4.0]},
        {"shape": [True, 4]},
        {"shape": 4},
        {"shape": [2**70]},
        {"dtype": "F33"},
        {"dtype": None},
    ],
)
def test_malformed_entry_is_refused(changes) -> None:
    assert parse_header(header(), 8 + len(header()) + 16, "w")["t"].shape == (4,)
    text = header(**changes)
    with pytest.raises(ContainerError, match=r"w[: ]"):
        parse_header(text, 8 + len(text) + 16, "w")


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"[" * 100_000, b'{"t": 1}', b"\xff\xfe"])
def test_malformed_header_is_refused(text: bytes) -> None:
    with pytest.raises(ContainerError):
        parse_header(text, 8 + len(text), "w")


def test_overlap_is_refused() -> None:
    row = {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}
    text = json.dumps({"a": row, "b": row}).encode()
    text += b" " * (-(len(text) + 8) % 64)
    with pytest.raises(ContainerError, match="overlaps"):
        parse_header(text, 8 + len(text) + 64, "w")
