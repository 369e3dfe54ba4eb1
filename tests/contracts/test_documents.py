"""The documents say what is true: the tree is as made, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

import qeff

ROOT = Path(qeff.__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def maker_of(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tree_is_as_made() -> None:
    maker = maker_of("make_tree")
    text = (ROOT / "README.md").read_text()
    assert maker.readme(text) == text, "run `make tree`"
    assert maker.files() == (ROOT / "docs" / "tree.md").read_text(), "run `make tree`"


def test_matrix_is_as_made() -> None:
    maker = maker_of("make_matrix")
    found = (ROOT / "docs" / "matrix.md").read_text()
    assert maker.render(maker.load()) == found, "run `python docs/make_matrix.py`"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_named_files_exist(path: Path) -> None:
    pattern = r"`((?:qeff|csrc|tests|docs|benchmarks|examples)/[\w/.]+\.\w+)`"
    for name in re.findall(pattern, path.read_text()):
        assert (ROOT / name).exists(), name
