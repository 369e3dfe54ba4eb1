"""Folders named by content: everything that decides the bytes changes the name."""

from __future__ import annotations

from pathlib import Path

import pytest

from qeff.compile import container_folder, graph_folder
from qeff.compile.artifacts import content_key, folder_name
from qeff.core.options import CompileOptions, ExportOptions

EXPORT, COMPILE = ExportOptions(), CompileOptions()


def test_folders_lie_under_the_cache_root(own_cache_root: Path) -> None:
    graph = graph_folder("org/Model 1", "aa", EXPORT, "1")
    container = container_folder("org/Model 1", "aa", EXPORT, COMPILE, "1")
    assert graph.parent == container.parent == own_cache_root / "org-Model-1"
    assert graph.name.startswith("org-Model-1-") and container.name.startswith("qpc-")
    assert graph == graph_folder("org/Model 1", "aa", ExportOptions(), "1")


@pytest.mark.parametrize(
    "change",
    [
        ("bb", EXPORT, COMPILE, "1"),
        ("aa", ExportOptions(continuous_batching=True), COMPILE, "1"),
        ("aa", EXPORT, CompileOptions(ctx_len=256), "1"),
        ("aa", EXPORT, CompileOptions(precision="int4"), "1"),
        ("aa", EXPORT, CompileOptions(vendor={"num_cores": 8}), "1"),
        ("aa", EXPORT, COMPILE, "2"),
    ],
)
def test_whatever_decides_the_bytes_changes_the_name(change) -> None:
    assert container_folder("m", *change) != container_folder("m", "aa", EXPORT, COMPILE, "1")


def test_a_key_does_not_depend_on_the_order_of_options() -> None:
    assert content_key({"a": 1, "b": {"x": 1, "y": 2}}) == content_key(
        {"b": {"y": 2, "x": 1}, "a": 1}
    )
    assert len(content_key({})) == 16


@pytest.mark.parametrize("name", ["..", "/", "", "../../etc", "a b"])
def test_a_name_stays_one_folder(name: str) -> None:
    made = folder_name(name)
    assert made not in ("", ".", "..") and "/" not in made and not made.startswith(".")
