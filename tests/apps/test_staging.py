"""Folders appear whole or not at all, whoever else writes them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from qeff.apps.staging import draft_folder, publish
from qeff.core.errors import ResourceError


def is_good(folder: Path) -> bool:
    return (folder / "file").read_text() in ("first", "second")


def put(out: Path, text: str) -> Path:
    with draft_folder(out.parent) as draft:
        (draft / "file").write_text(text)
        return publish(draft, out, is_good)


def test_the_first_good_folder_stays(tmp_path: Path) -> None:
    out = tmp_path / "a" / "out"
    put(out, "first")
    put(out, "second")
    assert (out / "file").read_text() == "first"
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_a_damaged_folder_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put(out, "damaged")
    put(out, "second")
    assert (out / "file").read_text() == "second"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), draft_folder(tmp_path) as draft:
        (draft / "file").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_drafts_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    with draft_folder(tmp_path) as living:
        dead = living.with_name(living.name.replace(".", ".9", 1))
        dead.mkdir()
        (dead / "file").write_text("half")
        with draft_folder(tmp_path):
            assert living.exists() and not dead.exists()


def test_a_full_disk_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="the disk is full"), draft_folder(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
