"""A container is there whole or not at all: errors, kills, races, and full disks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from sample import arrays, fill, groups, write

from qeff.container import Container, ContainerWriter, WeightGroup, WeightSpec
from qeff.container.format import encode_json
from qeff.core.errors import ResourceError, UsageError
from qeff.core.progress import Event

HERE = Path(__file__).parent


def content(folder: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in folder.iterdir()}


def test_equal_inputs_give_equal_bytes_anywhere(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one"), write(tmp_path / "far" / "away" / "two")
    assert content(one) == content(two)
    assert content(one) != content(write(tmp_path / "three", seed=1))


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> tuple[np.ndarray]:
        raise RuntimeError("no values")

    group = WeightGroup((WeightSpec("a", (2,), "f32"),), fail)
    with pytest.raises(RuntimeError, match="no values"), ContainerWriter(tmp_path / "c") as writer:
        writer.write_bytes("program.json", b"")
        writer.write_weights([group])
    assert list(tmp_path.iterdir()) == []


def test_weights_are_made_one_after_another_with_progress(tmp_path: Path) -> None:
    alive: list[str] = []
    events: list[Event] = []

    def make(name: str) -> tuple[np.ndarray]:
        alive.append(name)
        return (np.full((1 << 20, 4), len(alive), np.float32),)

    items = [WeightGroup((WeightSpec(n, (1 << 20, 4), "f32"),), lambda n=n: make(n)) for n in "ab"]
    with ContainerWriter(tmp_path / "c") as writer:
        layout = writer.write_weights(items, events.append)
    assert alive == ["a", "b"]
    done = [event.done for event in events]
    assert done == sorted(done) and done[-1] == layout.num_bytes == events[-1].total
    assert len(done) >= 4  # a large tensor is told in pieces


def test_an_equal_container_is_kept_and_another_is_replaced(tmp_path: Path) -> None:
    out = write(tmp_path / "c")
    before = (out / "manifest.json").stat().st_ino
    write(out)
    assert (out / "manifest.json").stat().st_ino == before
    write(out, seed=1)
    np.testing.assert_array_equal(Container.open(out).weight("a"), arrays(1)["a"])
    assert [item.name for item in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("damage", ["manifest.json", "weights.safetensors", "program.json"])
def test_a_damaged_container_is_replaced(tmp_path: Path, damage: str) -> None:
    out = write(tmp_path / "c")
    (out / damage).write_bytes(b"x")
    write(out)
    Container.open(out)
    (out / damage).unlink()
    write(out)
    Container.open(out)


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.txt").write_text("years")
    with pytest.raises(UsageError, match="not a container"):
        write(tmp_path / "c")
    assert (tmp_path / "c" / "thesis.txt").read_text() == "years"
    with pytest.raises(UsageError, match="not a container"):
        write(tmp_path / "c" / "thesis.txt")
    with pytest.raises(ResourceError, match="cannot write"):
        write(tmp_path / "c" / "thesis.txt" / "below")


@pytest.mark.parametrize("manifest", ['{"name": "a page", "icons": []}', "{", "[]"])
def test_a_manifest_of_somebody_else_is_left_alone(tmp_path: Path, manifest: str) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "manifest.json").write_text(manifest)
    (folder / "index.html").write_text("years")
    with pytest.raises(UsageError, match=r"index\.html, which is no part of a container"):
        write(folder)
    assert (folder / "index.html").read_text() == "years"


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "disk")
    for seed in (0, 1):
        write(tmp_path / "c", seed=seed)
        assert (tmp_path / "c").is_symlink() and Container.open(tmp_path / "disk")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["c", "disk"]


def test_what_was_put_into_a_container_keeps_it_from_being_replaced(tmp_path: Path) -> None:
    out = write(tmp_path / "c")
    (out / "notes.txt").write_text("years")
    Container.open(out)  # files that are not listed may lie there
    with pytest.raises(UsageError, match=r"notes\.txt"):
        write(out)
    assert (out / "notes.txt").read_text() == "years"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_clear_error(tmp_path: Path, monkeypatch, code: int) -> None:
    def full(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="disk is full") as error:
        write(tmp_path / "c")
    assert error.value.hint and list(tmp_path.iterdir()) == []


def test_a_file_that_the_system_cuts_off_is_a_clear_error(tmp_path: Path) -> None:
    """RLIMIT_FSIZE makes the kernel refuse the write itself, as a full disk does."""
    code = (
        "import resource, sys, pathlib\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "from sample import groups; from qeff.container import ContainerWriter\n"
        "from qeff.core.errors import ResourceError\n"
        "import numpy as np\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try:\n"
        "    with ContainerWriter(pathlib.Path(sys.argv[1]) / 'c') as writer:\n"
        "        writer.write_weights(groups({'a': np.zeros(1 << 20)}))\n"
        "except ResourceError as error: print(error)\n"
    )
    done = run(code, tmp_path)
    assert "disk is full" in done.stdout and list(tmp_path.iterdir()) == []


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )


SLOW_WRITER = f"""
import sys, time, pathlib
sys.path.insert(0, {str(HERE)!r})
import numpy as np
from sample import fill, write
from qeff.container import writer
slow = writer._Sink.write
def write_slowly(self, data):
    time.sleep(0.01)
    slow(self, data)
writer._Sink.write = write_slowly
print("ready", flush=True)
write(pathlib.Path(sys.argv[1]) / "c")
print("done", flush=True)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def test_a_killed_process_leaves_nothing_that_looks_like_a_result(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for _ in range(6):
        child = start(tmp_path)
        time.sleep(rng.uniform(0, 0.25))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        if (tmp_path / "c").exists():
            Container.open(tmp_path / "c", verify="full")
    write(tmp_path / "c")
    Container.open(tmp_path / "c", verify="full")
    assert [item.name for item in tmp_path.iterdir()] == ["c"]  # what the dead left is swept away


def test_a_living_process_is_not_swept_away(tmp_path: Path) -> None:
    with ContainerWriter(tmp_path / "c") as writer:
        write(tmp_path / "other")
        manifest = fill(writer)
        writer.commit(manifest)
    Container.open(tmp_path / "c")


def test_two_processes_at_once_both_succeed(tmp_path: Path) -> None:
    children = [start(tmp_path) for _ in range(3)]
    outputs = [child.communicate()[0] for child in children]
    assert outputs == ["done\n"] * 3 and all(child.returncode == 0 for child in children)
    Container.open(tmp_path / "c", verify="full")
    assert [item.name for item in tmp_path.iterdir()] == ["c"]


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ResourceError, match="Permission denied"):
        write(tmp_path / "c")


def test_json_has_one_spelling() -> None:
    assert encode_json({"b": 1, "a": "ü"}) == '{\n  "a": "ü",\n  "b": 1\n}\n'.encode()
    assert groups({}) == []
