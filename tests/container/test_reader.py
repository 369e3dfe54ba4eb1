"""Whatever happens to the files of a container: opening it gives it as written, or an error."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample import OPTIONS, SPEC, write

from qeff.container import Container, Manifest, reader
from qeff.container.format import encode_json
from qeff.core.errors import ContainerError

FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
FILES = [
    "manifest.json",
    "program.json",
    "tokenizer.json",
    "weights.safetensors",
    "certificate.json",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "c")


def test_sound_container_opens(folder: Path) -> None:
    found = Container.open(folder, verify="full")
    assert found.manifest.model == SPEC and found.manifest.options == OPTIONS
    assert found.read_bytes("tokenizer.json") == b"{}"
    shown = found.describe()
    assert shown["certificate"] == {"export": {"max_abs_error": 1e-6}}
    assert shown["weights"]["tensors"] == 6
    json.dumps(shown)


def test_container_can_be_moved(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    assert Container.open(moved).weight("a").shape == (3, 5)


def test_unlisted_files_are_ignored(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    found = Container.open(folder)
    with pytest.raises(ContainerError, match="no file"):
        found.read_bytes("notes.txt")


@FUZZ
@given(name=st.sampled_from(FILES), place=st.floats(0, 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(folder: Path, name: str, place: float, bit: int) -> None:
    path = folder / name
    good = path.read_bytes()
    bad = bytearray(good)
    bad[min(int(place * len(bad)), len(bad) - 1)] ^= 1 << bit
    path.write_bytes(bad)
    try:
        with pytest.raises(ContainerError) as error:
            Container.open(folder)
        assert error.value.hint == "compile again" and name in error.value.what
    finally:
        path.write_bytes(good)
    Container.open(folder)


@pytest.mark.parametrize("name", FILES)
def test_cut_replaced_missing_and_odd_files_are_noticed(
    folder: Path, name: str, tmp_path: Path
) -> None:
    path = folder / name
    good = path.read_bytes()
    for bad in (
        b"",
        good[:-1],
        good[: len(good) // 2],
        good + b"\0",
        b"x" * len(good),
        bytes(len(good)),
    ):
        path.write_bytes(bad)
        with pytest.raises(ContainerError, match=name):
            Container.open(folder)
    path.unlink()
    with pytest.raises(ContainerError, match=name):
        Container.open(folder)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(good)
    path.symlink_to(elsewhere)
    with pytest.raises(ContainerError, match=name):
        Container.open(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(ContainerError, match=name):
        Container.open(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(data: object, path: tuple = ()) -> list[tuple]:
    """The paths to every value inside a JSON value."""
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    return [path] + [p for key, value in items for p in places(value, (*path, key))]


@FUZZ
@given(data=st.data())
def test_a_manifest_that_lies_with_a_right_digest_gives_only_container_errors(
    folder: Path, data
) -> None:
    import hashlib

    content = json.loads((folder / "manifest.json").read_bytes())
    content.pop("digest")
    path = data.draw(st.sampled_from(places(content)[1:]))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if data.draw(st.booleans()):
        inner[path[-1]] = data.draw(JSON)
    else:
        del inner[path[-1]]
    try:
        raw = encode_json(content)
        digest = hashlib.sha256(raw).hexdigest()
        manifest = Manifest.decode(encode_json(content | {"digest": digest}))
    except ContainerError:
        return
    except (ValueError, UnicodeEncodeError):  # the mutation itself is no JSON
        return
    assert json.loads(json.dumps(manifest.to_json()))


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_as_manifest_give_a_container_error(raw: bytes) -> None:
    with pytest.raises(ContainerError):
        Manifest.decode(raw)


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "a\\b", "..", ".hidden", "", "manifest.json", "a\0b"]
)
def test_names_that_leave_the_folder_are_refused(folder: Path, name: str) -> None:
    import hashlib

    content = json.loads((folder / "manifest.json").read_bytes())
    content.pop("digest")
    content["files"][name] = {"size": 0, "sha256": "0" * 64}
    digest = hashlib.sha256(encode_json(content)).hexdigest()
    with pytest.raises(ContainerError, match="may not be called"):
        Manifest.decode(encode_json(content | {"digest": digest}))


def test_another_version_is_named(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_bytes()) | {"version": 99}
    (folder / "manifest.json").write_bytes(encode_json(content))
    with pytest.raises(ContainerError, match="version 99"):
        Container.open(folder)


@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_what_is_no_container(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "file":
        path.write_text("x")
    elif what == "empty":
        path.mkdir()
    with pytest.raises(ContainerError):
        Container.open(path)


def test_a_large_file_is_hashed_once_and_again_after_a_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = []
    real = reader.hash_file
    monkeypatch.setattr(reader, "MEMO_BYTES", 200)
    monkeypatch.setattr(reader, "hash_file", lambda p: hashed.append(p.name) or real(p))
    path = folder / "weights.safetensors"
    Container.open(folder)
    Container.open(folder)
    assert hashed.count(path.name) == 1
    Container.open(folder, verify="full")
    assert hashed.count(path.name) == 2
    # A flipped byte is noticed even when the time of the file is put back.
    times = path.stat()
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ContainerError, match="changed"):
        Container.open(folder)
