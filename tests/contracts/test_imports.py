"""What an import costs: the face loads nothing heavy, and the run half never sees torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "onnx", "onnx_ir", "onnxruntime", "safetensors", "gguf")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_face_imports_nothing_heavy() -> None:
    out = run("import sys, qeff; print(*sorted(m for m in sys.modules if '.' not in m))")
    assert not set(out.split()) & set(HEAVY)


def test_face_imports_quickly() -> None:
    code = "import time; t = time.perf_counter(); import qeff; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(3)) < 0.15


@pytest.mark.parametrize("room", ["container", "runtime", "generate", "ops"])
def test_run_half_lives_without_the_build_half(room: str) -> None:
    blocked = ("torch", "transformers", "onnx", "onnx_ir", "safetensors", "gguf")
    run(
        f"import sys, pkgutil, importlib\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        f"import qeff.{room} as room\n"
        f"for item in pkgutil.iter_modules(room.__path__): "
        f"importlib.import_module(f'qeff.{room}.' + item.name)\n"
        f"for name in room.__all__: getattr(room, name)\n"
    )


@pytest.mark.parametrize("room", ["compile", "export.artifact"])
def test_compile_lives_without_torch(room: str) -> None:
    run(
        f"import sys\n"
        f"for name in ('torch', 'transformers'): sys.modules[name] = None\n"
        f"import importlib; room = importlib.import_module('qeff.{room}')\n"
        f"for name in getattr(room, '__all__', ()): getattr(room, name)\n"
    )
