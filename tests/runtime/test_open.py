"""Opening a session: found by target, and clear when something is missing."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from qeff.core.errors import ResourceError
from qeff.core.options import CompileOptions
from qeff.core.spec import ModelSpec
from qeff.runtime import open_session

SPEC = ModelSpec("m", "A", "a", 8, 0, 1, None, ())


def container(target: str) -> SimpleNamespace:
    manifest = SimpleNamespace(
        target=target, options=CompileOptions(target=target), model=SPEC, inputs=()
    )
    return SimpleNamespace(manifest=manifest, path="c")


def test_a_target_without_a_back_end() -> None:
    with pytest.raises(ResourceError, match="'nowhere'"):
        open_session(SimpleNamespace(manifest=SimpleNamespace(target="nowhere")))  # type: ignore[arg-type]


def test_a_missing_library_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ResourceError, match="needs onnxruntime") as error:
        open_session(container("ort"))  # type: ignore[arg-type]
    assert error.value.hint == "pip install onnxruntime"


def test_the_back_end_gets_container_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("qeff.backends.ort.session")
    module.open_session = lambda *args: args  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "qeff.backends.ort.session", module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    given = container("ort")
    assert open_session(given, threads=3) == (given, 3)  # type: ignore[comparison-overlap]
