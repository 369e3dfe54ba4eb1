"""Which checkpoint a name means, and the answers to names that mean none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from qeff.core.errors import SourceError
from qeff.sources import locate, open_source

ONE = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}


def settle(*paths: Path) -> None:
    """Give files a time in the past, as a checkpoint has that was not written just now."""
    past = time.time_ns() - 10**12 + 7
    for path in paths:
        os.utime(path, ns=(past, past))


def test_folder(make_folder):
    folder = make_folder(ONE)
    (folder / "README.md").write_text("x")
    found = locate(str(folder))
    assert (found.name, found.kind, found.folder) == ("tiny-model", "safetensors", folder)
    assert {path.name for path in found.files} == {"config.json", "model.safetensors"}


def test_sharded_folder_lists_each_shard(make_folder):
    tensors = ONE | {"v": np.ones(3, np.float16)}
    folder = make_folder(tensors, shards={"a.safetensors": ["w"], "b.safetensors": ["v"]})
    names = {path.name for path in locate(folder).files}
    assert names >= {"a.safetensors", "b.safetensors", "model.safetensors.index.json"}


def test_remote_code_decides_only_when_trusted(make_folder):
    folder = make_folder(ONE)
    (folder / "modeling.py").write_text("x = 1")
    assert all(path.suffix != ".py" for path in locate(folder).files)
    assert any(path.suffix == ".py" for path in locate(folder, trust_remote_code=True).files)


@pytest.mark.parametrize(
    "ref", ["./missing", "/no/such/folder", "~/no-such-model", "x.gguf", "a/b/c"]
)
def test_missing_path(ref):
    with pytest.raises(SourceError, match="no checkpoint at") as caught:
        locate(ref)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_pickle_is_refused(tmp_path, name):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80\x02.")
    for ref in (tmp_path, tmp_path / name):
        with pytest.raises(SourceError, match="pickle") as caught:
            locate(ref)
        assert "safetensors" in caught.value.hint


def test_folder_with_one_gguf(tmp_path):
    file = tmp_path / "some.gguf"
    file.write_bytes(b"GGUF")
    found = locate(tmp_path)
    assert (found.kind, found.gguf_file, found.folder) == ("gguf", file, None)
    (tmp_path / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(SourceError, match="2 GGUF files"):
        locate(tmp_path)


def test_folder_without_weights(tmp_path):
    with pytest.raises(SourceError, match="no weights"):
        locate(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(SourceError, match="neither"):
        locate(tmp_path)


@pytest.mark.parametrize("ref", ["", "   "])
def test_empty_name(ref):
    with pytest.raises(SourceError, match="empty"):
        locate(ref)


def test_content_hash_follows_the_bytes_and_not_the_place(make_folder, tmp_path):
    folder = make_folder(ONE)
    first = locate(folder).content_hash()
    moved = folder.rename(tmp_path / "elsewhere")
    assert locate(moved).content_hash() == first
    weights = moved / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    second = locate(moved).content_hash()
    assert second != first
    (moved / "config.json").write_text(json.dumps({"model_type": "other"}))
    assert locate(moved).content_hash() not in (first, second)


def test_content_hash_is_remembered_and_forgotten_when_a_file_changes(
    make_folder, home, monkeypatch
):
    from qeff.sources import fingerprint

    folder = make_folder(ONE)
    settle(*folder.iterdir())
    first = locate(folder).content_hash()
    assert len(json.loads((home / "hashes.json").read_text())) == 2
    read = []
    real = fingerprint.hash_file
    monkeypatch.setattr(fingerprint, "hash_file", lambda path: read.append(path) or real(path))
    assert locate(folder).content_hash() == first
    assert read == []
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    assert locate(folder).content_hash() != first
    assert [Path(path).name for path in read] == ["config.json"]


def test_a_damaged_memo_is_only_forgotten(make_folder, home):
    folder = make_folder(ONE)
    settle(*folder.iterdir())
    first = locate(folder).content_hash()
    for text in ("{", "[]", '{"x": 1}', json.dumps({str(folder / "config.json"): {"sha256": 1}})):
        (home / "hashes.json").write_text(text)
        assert locate(folder).content_hash() == first


def test_a_file_written_this_moment_is_not_remembered(make_folder, home):
    folder = make_folder(ONE)
    for path in folder.iterdir():
        os.utime(path)
    locate(folder).content_hash()
    memo = home / "hashes.json"
    assert not memo.exists() or json.loads(memo.read_text()) == {}


def test_a_cache_that_cannot_be_written_does_not_stop_the_work(make_folder, tmp_path, monkeypatch):
    folder = make_folder(ONE)
    settle(*folder.iterdir())
    (tmp_path / "file").write_text("")
    expected = locate(folder).content_hash()
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "file" / "home"))
    assert locate(folder).content_hash() == expected


def test_locating_and_hashing_loads_nothing_heavy(make_folder):
    folder = make_folder(ONE)
    code = (
        "import sys; from qeff.sources import locate; locate(sys.argv[1]).content_hash();"
        "heavy = {'torch', 'transformers', 'gguf', 'huggingface_hub', 'safetensors', 'onnx'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_open_source_takes_a_location(make_folder):
    folder = make_folder(ONE)
    assert open_source(locate(folder)).header_hash() == open_source(str(folder)).header_hash()
