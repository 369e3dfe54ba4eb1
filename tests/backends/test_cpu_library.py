"""The native library as a file: what is there instead of it is told in one sentence."""

from __future__ import annotations

import ctypes.util
from pathlib import Path

import pytest

from qeff._native import library
from qeff.core.errors import ResourceError


def test_what_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / library.NAME
    path.write_text("nothing")
    with pytest.raises(ResourceError, match="cannot be loaded") as caught:
        library.Library(path)
    assert "make native" in str(caught.value.hint)


def test_a_library_of_another_kind() -> None:
    """It has none of the functions that are looked up, as one of another release may lack some."""
    name = ctypes.util.find_library("c")
    assert name is not None
    with pytest.raises(ResourceError, match="has API version none, this release needs"):
        library.Library(Path(name))


def test_a_library_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(library.__file__).with_name(library.NAME)
    found = library.API_VERSION
    monkeypatch.setattr(library, "API_VERSION", found + 1)
    with pytest.raises(ResourceError, match=f"version {found}, this release needs {found + 1}"):
        library.Library(path)


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "NAME", "libnone.so")
    with pytest.raises(ResourceError, match="not built") as caught:
        library.load.__wrapped__()
    assert "make native" in str(caught.value.hint)
