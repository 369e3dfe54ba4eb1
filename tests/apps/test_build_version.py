"""A changed build half makes its results anew; a changed run half does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import qeff
from qeff.apps import build_version as module


def version_of(root: Path, monkeypatch) -> str:
    monkeypatch.setattr(module, "__file__", str(root / "apps" / "build_version.py"))
    module.build_version.cache_clear()
    try:
        return module.build_version()
    finally:
        module.build_version.cache_clear()


def test_digest_follows_the_build_half(tmp_path: Path, monkeypatch) -> None:
    root = tmp_path / "qeff"
    shutil.copytree(Path(qeff.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    before = version_of(root, monkeypatch)
    assert before == module.build_version() and before.startswith(qeff.__version__ + "+")
    (root / "generate" / "engine.py").write_text("# changed")
    assert version_of(root, monkeypatch) == before
    (root / "compile" / "compiler.py").write_text("# changed")
    assert version_of(root, monkeypatch) != before
