"""Which room may import which: every import counts, deferred ones too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import qeff

ROOT = Path(qeff.__file__).parent
NUMERIC = {"numpy", "ml_dtypes"}

# room: (our rooms it may import, third-party packages it may import; None = any)
ROOMS: dict[str, tuple[tuple[str, ...], set[str] | None]] = {
    "core": ((), NUMERIC),
    "ops": (("core", "container.program"), NUMERIC),
    "sources": (
        ("core",),
        NUMERIC | {"torch", "transformers", "safetensors", "huggingface_hub", "gguf", "tokenizers"},
    ),
    "transform": (("core", "ops", "sources"), NUMERIC | {"torch", "transformers"}),
    "export": (
        ("core", "ops", "transform.artifact"),
        NUMERIC | {"torch", "onnx_ir", "sympy"},
    ),
    # The parity check needs a second way through the whole build half, and ONNX Runtime to run it.
    "export/parity": (
        ("core", "ops", "sources", "transform", "export"),
        NUMERIC | {"torch", "transformers", "onnx_ir", "onnxruntime"},
    ),
    "_native": (("core",), set()),
    "container": (("core",), NUMERIC),
    "compile": (("core", "ops", "export.artifact", "container"), NUMERIC | {"onnx_ir"}),
    "runtime": (("core", "container"), NUMERIC),
    "generate": (("core", "container", "runtime"), {"numpy", "tokenizers", "jinja2", "llguidance"}),
    # A back-end is two files that never meet: lower.py builds, session.py runs.
    "backends/*/lower": (
        ("core", "ops", "container", "compile", "export.artifact"),
        NUMERIC | {"onnx_ir"},
    ),
    "backends/*/session": (
        ("core", "ops", "container", "runtime.session", "_native"),
        NUMERIC | {"onnxruntime", "torch", "triton"},
    ),
    "backends/*": (("core",), NUMERIC),
    "apps": (
        (
            "_version",
            "_native",
            "core",
            "sources",
            "transform",
            "export",
            "compile",
            "container",
            "runtime",
            "generate",
        ),
        None,
    ),
}


def room_of(rel: Path) -> str:
    parts = rel.with_suffix("").parts
    if parts[0] != "backends":
        whole = "/".join(parts[:2])
        return whole if whole in ROOMS else parts[0]
    side = parts[2] if len(parts) > 2 else ""
    return f"backends/*/{side}" if side in ("lower", "session") else "backends/*"


def imports(path: Path) -> Iterator[tuple[int, list[str]]]:
    package = ("qeff", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = base + (node.module.split(".") if node.module else [])
            for alias in node.names:
                yield node.lineno, [*module, alias.name]


def is_at_home(rel: Path, room: str, target: list[str]) -> bool:
    if rel.parts[0] != "backends":
        return target[:1] == [rel.parts[0]]
    other = f"backends/*/{target[2]}" if len(target) > 2 else ""
    meets = {room, other} == {"backends/*/lower", "backends/*/session"}
    return target[:2] == list(rel.parts[:2]) and not meets


def violations() -> Iterator[str]:
    known = frozenset(sys.stdlib_module_names) | {"__future__"}
    for path in sorted(ROOT.rglob("*.py")):
        rel = path.relative_to(ROOT)
        if len(rel.parts) == 1:
            continue  # the face of the package may open every door
        room = room_of(rel)
        rooms, packages = ROOMS[room]
        for line, name in imports(path):
            if name[0] != "qeff":
                if packages is not None and name[0] not in known | packages:
                    yield f"{rel}:{line}: {room} may not import {name[0]}"
            elif not is_at_home(rel, room, name[1:]):
                dotted = ".".join(name[1:]) + "."
                if not any(dotted.startswith(f"{allowed}.") for allowed in rooms):
                    yield f"{rel}:{line}: {room} may not import {'.'.join(name)}"


def test_every_import_is_allowed() -> None:
    assert list(violations()) == []


def test_a_forbidden_import_is_caught(tmp_path: Path, monkeypatch) -> None:
    bad = tmp_path / "core" / "bad.py"
    bad.parent.mkdir()
    bad.write_text("def f():\n    import torch\n    from qeff.apps import pipeline\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert len(list(violations())) == 2
