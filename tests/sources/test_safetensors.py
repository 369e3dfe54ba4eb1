"""Safetensors folders: values against the safetensors library, and damage of every kind."""

from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load, save

from qeff.core.errors import SourceError
from qeff.sources import open_source
from qeff.sources.safetensors_header import read_header

RNG = np.random.default_rng(0)
TENSORS = {
    "f32": RNG.standard_normal((3, 4)).astype(np.float32),
    "f16": RNG.standard_normal((2, 2, 3)).astype(np.float16),
    "bf16": RNG.standard_normal((5, 2)).astype(ml_dtypes.bfloat16),
    "i64": np.arange(4),
    "u8": np.arange(7, dtype=np.uint8),
    "scalar": np.array(3.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
}


def pack(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2,), span=(0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(span)}


def test_values_and_places(make_folder):
    source = open_source(make_folder(TENSORS))
    assert source.tensors.keys() == TENSORS.keys()
    for name, expected in TENSORS.items():
        tensor = source.tensors[name]
        values = tensor.read()
        assert values.dtype == expected.dtype
        assert tensor.shape == values.shape == expected.shape
        assert values.tobytes() == expected.tobytes()
        assert tensor.raw().tobytes() == expected.tobytes()
        assert tensor.raw().ndim == 2
        place = tensor.location
        stored = place.path.read_bytes()[place.offset : place.offset + place.length]
        assert stored == expected.tobytes()


def test_values_that_are_not_aligned_are_read_too(tmp_path):
    values = np.arange(2, dtype=np.float32)
    data = pack(b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', values.tobytes())
    (tmp_path / "m.safetensors").write_bytes(data)
    tensor = read_header(tmp_path / "m.safetensors")["w"]
    assert tensor.location.offset % 4
    np.testing.assert_array_equal(tensor.read(), values)


def test_sharded(make_folder):
    shards = {"a.safetensors": ["f32", "i64"], "b.safetensors": ["f16"]}
    source = open_source(make_folder(TENSORS, shards=shards))
    assert set(source.tensors) == {"f32", "i64", "f16"}
    np.testing.assert_array_equal(source.tensors["f16"].read(), TENSORS["f16"])


def test_shard_that_is_missing_or_lacks_a_tensor(make_folder):
    folder = make_folder(TENSORS, shards={"a.safetensors": ["f32"], "b.safetensors": ["f16"]})
    (folder / "b.safetensors").write_bytes(save({"other": TENSORS["f16"]}))
    with pytest.raises(SourceError, match="lacks the tensor f16"):
        open_source(folder)
    (folder / "b.safetensors").unlink()
    with pytest.raises(SourceError, match=r"b\.safetensors is missing"):
        open_source(folder)


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"w": "../x.safetensors"}}']
)
def test_bad_index(make_folder, index):
    folder = make_folder(TENSORS, shards={"a.safetensors": ["f32"]})
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(SourceError):
        open_source(folder)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, "missing"),
        ("", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "not valid JSON"),
        ("{}", "which architecture"),
        ('{"architectures": ["X"]}', "which architecture"),
        ('{"model_type": 3}', "which architecture"),
        ('{"model_type": "llama", "architectures": "X"}', "no list of names"),
    ],
)
def test_bad_config(make_folder, text, match):
    folder = make_folder(TENSORS)
    (folder / "config.json").unlink()
    if text is not None:
        (folder / "config.json").write_text(text)
    with pytest.raises(SourceError, match=match) as caught:
        open_source(folder)
    assert caught.value.hint


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 200_000_000),
        pack(b"\xff\xfe"),
        pack([]),
        pack(b'{"w": ' + b"[" * 50_000),
        pack({"w": 1}),
        pack({"w": entry(dtype="F99")}, bytes(8)),
        pack({"w": entry(dtype=None)}, bytes(8)),
        pack({"w": entry(shape=(-2,))}, bytes(8)),
        pack({"w": entry(shape=(2.0,))}, bytes(8)),
        pack({"w": entry(shape=(True, 2))}, bytes(8)),
        pack({"w": entry(shape=(3,))}, bytes(8)),
        pack({"w": entry(shape=(1 << 62, 1 << 62))}, bytes(8)),
        pack({"w": entry(span=(8, 0))}, bytes(8)),
        pack({"w": entry(span=(0, 8, 9))}, bytes(8)),
        pack({"w": entry()}, bytes(7)),
        pack({"w": entry()}, bytes(9)),
        pack({"w": entry(), "v": entry(span=(4, 12))}, bytes(12)),
        pack({"w": entry(), "v": entry(span=(12, 20))}, bytes(20)),
        pack(b'{"w":%(e)s,"w":%(e)s}' % {b"e": json.dumps(entry()).encode()}, bytes(8)),
    ],
)
def test_damaged_file(tmp_path, data):
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(SourceError) as caught:
        read_header(path)
    assert caught.value.hint
    assert "\n" not in caught.value.what


def test_a_file_cut_after_opening_is_an_error_and_no_crash(make_folder):
    folder = make_folder({"w": np.zeros((1000, 1000), np.float32)})
    tensor = open_source(folder).tensors["w"]
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(SourceError, match="mapped"):
        tensor.read()


WHOLE = save({name: TENSORS[name] for name in ("f32", "i64", "u8")})


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_mutation_is_refused_or_read_as_the_library_reads_it(tmp_path, data):
    mutated = bytearray(WHOLE)
    header_end = 8 + struct.unpack_from("<Q", WHOLE)[0]
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    mutated = (
        mutated[: data.draw(st.integers(0, len(mutated)))] if data.draw(st.booleans()) else mutated
    )
    path = tmp_path / "m.safetensors"
    path.write_bytes(mutated)
    try:
        ours = {name: tensor.read() for name, tensor in read_header(path).items()}
    except SourceError:
        return
    try:
        theirs = load(bytes(mutated))
    except (SafetensorError, KeyError, TypeError) as error:
        pytest.fail(f"accepted what the library refuses: {error}")
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        assert values.tobytes() == theirs[name].tobytes()


def test_text_files(make_folder):
    folder = make_folder(TENSORS)
    assert open_source(folder).text_files() == {}
    template = "{{ messages }}"
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "special_tokens_map.json").write_text('{"eos_token": "</s>", "bos_token": "<a>"}')
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "chat_template": template})
    )
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    source = open_source(folder)
    files = source.text_files()
    assert files["tokenizer.json"] == b'{"version": "1.0"}'
    assert json.loads(files["tokenizer_config.json"])["bos_token"] == "<s>"
    assert json.loads(files["tokenizer_config.json"])["eos_token"] == "</s>"
    assert files["chat_template.jinja"].decode() == template
    assert source.generation_config == json.loads(files["generation_config.json"])
    (folder / "chat_template.jinja").write_text("other")
    assert source.text_files()["chat_template.jinja"] == b"other"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("tokenizer.json", b"\xff\xff"),
        ("generation_config.json", b"[]"),
        ("generation_config.json", b"{"),
        ("chat_template.jinja", b"\xff\xfe{{"),
    ],
)
def test_broken_text_files(make_folder, name, data):
    folder = make_folder(TENSORS)
    (folder / name).write_bytes(data)
    with pytest.raises(SourceError, match=name) as caught:
        open_source(folder).text_files()
    assert "again" in caught.value.hint


def test_named_chat_templates_give_the_default(make_folder):
    folder = make_folder(TENSORS)
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert open_source(folder).text_files()["chat_template.jinja"] == b"d"


def test_older_tokenizer_files_are_converted(make_folder):
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    folder = make_folder(TENSORS)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    vocab = {chr(ord("a") + i): i for i in range(26)} | {"he": 26, "<|endoftext|>": 27, "Ġ": 28}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\nh e\n")
    files = open_source(folder).text_files()
    made = Tokenizer.from_str(files["tokenizer.json"].decode())
    expected = AutoTokenizer.from_pretrained(folder)("he said hello<|endoftext|>").input_ids
    assert made.encode("he said hello<|endoftext|>").ids == expected
    assert 26 in expected and 27 in expected
    assert json.loads(files["tokenizer_config.json"])["eos_token"] == "<|endoftext|>"


def test_header_hash_depends_on_the_description_alone(make_folder):
    folder = make_folder({"w": np.zeros((2, 3), np.float32)})
    first = open_source(folder).header_hash()
    make_folder({"w": np.ones((2, 3), np.float32)})
    assert open_source(folder).header_hash() == first
    make_folder({"w": np.ones((3, 2), np.float32)})
    assert open_source(folder).header_hash() != first
