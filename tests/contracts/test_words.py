"""Where names may stand: environment variables, back-ends and model types each have one home."""

from __future__ import annotations

import ast
from pathlib import Path

import qeff

ROOT = Path(qeff.__file__).parent


def sources(*, without: tuple[str, ...]) -> list[Path]:
    paths = sorted(ROOT.rglob("*.py"))
    return [p for p in paths if not str(p.relative_to(ROOT)).startswith(without)]


def compared_strings(path: Path) -> list[str]:
    """String constants that an ``==``, ``!=`` or ``in`` compares with."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    found += [part.value]
    return found


def test_environment_is_read_in_one_place() -> None:
    bad = [p for p in sources(without=("core/env.py",)) if "os.environ" in p.read_text()]
    assert bad == []


def test_shared_code_asks_for_no_backend() -> None:
    names = {p.name for p in (ROOT / "backends").iterdir() if p.is_dir()} - {"__pycache__"}
    bad = {
        str(p.relative_to(ROOT)): sorted(names & set(compared_strings(p)))
        for p in sources(without=("backends/", "apps/cli/doctor"))
        if names & set(compared_strings(p))
    }
    assert bad == {}


def test_shared_code_asks_for_no_model_type() -> None:
    import transformers

    types = set(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)
    bad = {
        str(p.relative_to(ROOT)): sorted(types & set(compared_strings(p)))
        for p in sources(without=("transform/families/",))
        if types & set(compared_strings(p))
    }
    assert bad == {}
