"""Size limits: growth adds files, it does not lengthen them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import qeff

ROOT = Path(qeff.__file__).parent
MAX_FILE = 400
MAX_FUNCTION = 60
MAX_KERNEL = 170
MAX_PARAMETERS = 7
MAX_METHODS = 20

# Signatures that are somebody else's contract, each with its reason.
WIDE = {
    "QEFFAutoModelForCausalLM.compile": "QEfficient's documented signature",
    "QEFFAutoModelForCausalLM.export": "QEfficient's documented signature",
    "QEFFAutoModelForCausalLM.generate": "QEfficient's documented signature",
    "QEFFAutoModelForCausalLM.from_pretrained": "QEfficient's documented signature",
}

FILES = sorted(ROOT.rglob("*.py"))


def functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{owner}{node.name}", node  # type: ignore[misc]
            yield from functions(node, owner)
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{node.name}.")
        else:
            yield from functions(node, owner)


def decorators(node: ast.FunctionDef) -> set[str]:
    """The last names of a function's decorators, called or not."""
    plain = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return {d.attr if isinstance(d, ast.Attribute) else getattr(d, "id", "") for d in plain}


def is_kernel(node: ast.FunctionDef) -> bool:
    """A function for the GPU, which has no objects and no calls that cost nothing to read past."""
    return "jit" in decorators(node)


def is_foreign_contract(node: ast.FunctionDef) -> bool:
    """A body for another library: its function's parameters, or a kernel's."""
    return bool(decorators(node) & {"opaque", "register_fake"}) or is_kernel(node)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_keeps_its_budget(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a file says in its docstring what it is for"
    assert len(text.splitlines()) <= MAX_FILE
    for name, node in functions(tree):
        assert node.end_lineno is not None
        most = MAX_KERNEL if is_kernel(node) else MAX_FUNCTION
        assert node.end_lineno - node.lineno < most, f"{name} is too long"
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        named = [p for p in parameters if p.arg not in ("self", "cls")]
        if name not in WIDE and not is_foreign_contract(node):
            assert len(named) <= MAX_PARAMETERS, f"{name} has {len(named)} parameters"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
            assert len(methods) <= MAX_METHODS, f"{node.name} has {len(methods)} methods"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_file_name_says_a_job(path: Path) -> None:
    vague = ("util", "helper", "common", "misc", "manager", "handler", "processor")
    assert not any(word in path.stem for word in vague)
