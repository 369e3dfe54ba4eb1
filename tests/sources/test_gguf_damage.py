"""GGUF headers that are cut or lie: one sentence each, never a crash, a hang or a flood."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from gguf_models import add_vocabulary
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qeff.core.errors import SourceError, UnsupportedModel
from qeff.sources import open_source
from qeff.sources.gguf_header import read_gguf_header

EMPTY = struct.pack("<QQ", 0, 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_feed_forward_length(32)
    writer.add_layer_norm_rms_eps(1e-6)
    add_vocabulary(writer)
    rng = np.random.default_rng(0)
    for name, shape in {
        "token_embd.weight": (300, 32), "output_norm.weight": (32,),
        "blk.0.attn_norm.weight": (32,), "blk.0.ffn_norm.weight": (32,),
        "blk.0.attn_q.weight": (32, 32), "blk.0.attn_k.weight": (16, 32),
        "blk.0.attn_v.weight": (16, 32), "blk.0.attn_output.weight": (32, 32),
        "blk.0.ffn_gate.weight": (32, 32), "blk.0.ffn_up.weight": (32, 32),
        "blk.0.ffn_down.weight": (32, 32),
    }.items():  # fmt: skip
        writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(*fields: bytes, tensors: tuple[bytes, ...] = (), data: bytes = b"") -> bytes:
    architecture = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    counts = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields) + 1)
    head = counts + architecture + b"".join(fields) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def tensor(name="w", axes=(32,), kind=0, offset=0) -> bytes:
    dims = struct.pack(f"<{len(axes)}Q", *axes)
    return text(name) + struct.pack("<I", len(axes)) + dims + struct.pack("<IQ", kind, offset)


def array(key: str, kind: int, count: int) -> bytes:
    return text(key) + struct.pack("<IIQ", 9, kind, count)


def number(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "not a GGUF file"),
        (b"GGUF", "not a GGUF file"),
        (b"NOPE" + bytes(40), "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 9) + EMPTY, "version 9"),
        (b"GGUF" + struct.pack(">I", 3) + EMPTY, "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63), "claims"),
        (b"GGUF" + struct.pack("<I", 3) + EMPTY, "which architecture"),
        (header(text("k") + struct.pack("<IQ", 8, 1 << 62)), "claims"),
        (header(array("k", 8, 1 << 40)), "claims"),
        (header(array("k", 4, 1 << 61)), "claims"),
        (header(array("k", 9, 1)), "unreadable type 9"),
        (header(text("k") + struct.pack("<I", 77)), "unknown type 77"),
        (header(number("k", 1), number("k", 2)), "twice"),
        (header(struct.pack("<Q", 2) + b"\xff\xff" + struct.pack("<II", 4, 1)), "UTF-8"),
        (header(number("general.alignment", 3)), "power of two"),
        (header(number("general.alignment", 0)), "power of two"),
        (header(number("split.count", 3)), "one of 3 parts"),
        (header(tensors=(tensor(),), data=bytes(127)), "cut short"),
        (header(tensors=(tensor(axes=(1 << 62, 1 << 62)),), data=bytes(128)), "cut short"),
        (header(tensors=(tensor(offset=1 << 62),), data=bytes(128)), "cut short"),
        (header(tensors=(tensor(offset=4),), data=bytes(256)), "not within"),
        (header(tensors=(tensor(axes=()),), data=bytes(128)), "0 axes"),
        (header(tensors=(tensor(axes=(1,) * 9),), data=bytes(128)), "9 axes"),
        (header(tensors=(tensor(axes=(0,)),), data=bytes(128)), "whole blocks"),
        (header(tensors=(tensor(axes=(31,), kind=8),), data=bytes(128)), "whole blocks"),
        (header(tensors=(tensor(kind=99),), data=bytes(128)), "format number 99"),
        (header(tensors=(tensor(), tensor()), data=bytes(128)), "twice"),
        (header(tensors=(tensor(), tensor("v")), data=bytes(128)), "overlapping"),
    ],
)
def test_lies(tmp_path, data, match):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=match) as caught:
        open_source(path)
    assert caught.value.hint
    assert "\n" not in caught.value.what


def test_any_cut_is_noticed(tmp_path, whole):
    path = tmp_path / "m.gguf"
    for size in [*range(0, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(SourceError):
            read_gguf_header(path)


def test_a_layer_count_that_lies_builds_no_layers(tmp_path, whole):
    at = whole.index(b"llama.block_count") + len(b"llama.block_count") + 4
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[:at] + struct.pack("<I", 1 << 30) + whole[at + 4 :])
    with pytest.raises(SourceError, match="layers"):
        _ = open_source(path).tensors


@pytest.mark.parametrize("key", ["embedding_length", "attention.head_count", "feed_forward_length"])
@pytest.mark.parametrize("value", [0, 7, 64, 1 << 31])
def test_sizes_that_do_not_fit_the_tensors(tmp_path, whole, key, value):
    name = f"llama.{key}".encode()
    at = whole.index(name + struct.pack("<I", 4)) + len(name) + 4
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[:at] + struct.pack("<I", value) + whole[at + 4 :])
    with pytest.raises((SourceError, UnsupportedModel)):
        for tensor in open_source(path).tensors.values():
            tensor.read()


def test_an_architecture_that_nobody_knows(tmp_path, whole):
    path = tmp_path / "m.gguf"
    path.write_bytes(whole.replace(b"llama", b"lamma"))
    with pytest.raises(UnsupportedModel, match="lamma"):
        _ = open_source(path).config


@settings(
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_mutation_of_the_header_is_refused_or_stays_within_the_file(tmp_path, whole, data):
    table_end = whole.index(b"blk.0.ffn_down.weight") + 60
    mutated = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, table_end))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        mutated[at : at + len(piece)] = piece
    path = tmp_path / "m.gguf"
    path.write_bytes(mutated)
    try:
        found = read_gguf_header(path)
    except SourceError:
        return
    for info in found.tensors.values():
        assert info.place.offset + info.place.length <= len(mutated)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_what_passes_the_header_check_fails_cleanly_later(tmp_path, whole, data):
    start = whole.index(b"llama.block_count")
    end = whole.index(b"token_embd.weight")
    mutated = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        mutated[data.draw(st.integers(start, end))] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.gguf"
    path.write_bytes(mutated)
    for use in ("tensors", "text"):
        try:
            source = open_source(path)
            if use == "text":
                source.text_files()
            else:
                for found in source.tensors.values():
                    found.read()
        except (SourceError, UnsupportedModel):
            pass
