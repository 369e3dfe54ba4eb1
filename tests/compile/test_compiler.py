"""Compile as a whole: reproducible, complete, safe against kills, clear about its limits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from dialect import Size, build_random

from qeff.compile import available_targets, compile_graph
from qeff.container import Container
from qeff.core.errors import CompileError, ResourceError
from qeff.core.options import CompileOptions
from qeff.core.progress import Event

HERE = Path(__file__).parent
PROGRAM = {"cpu": "program.json", "ort": "program.onnx"}
LAST_INPUT = {"cpu": "position_ids", "ort": "logits_index"}
TEXT = {"tokenizer.json": b'{"version": "1.0"}', "chat_template.jinja": b"{{ messages }}"}


def build(out: Path, progress=lambda event: None, **options) -> Path:
    graph, _ = build_random(Size())
    chosen = CompileOptions(ctx_len=32, prefill_seq_len=8, **options)
    return compile_graph(
        graph, chosen, text_files=TEXT, provenance={"version": "0"}, out=out, progress=progress
    )


def hashes(folder: Path) -> dict[str, str]:
    files = Container.open(folder, verify="full").manifest.files
    return {name: entry.sha256 for name, entry in files.items()} | {
        "manifest.json": (folder / "manifest.json").read_text()
    }


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int4"])
@pytest.mark.parametrize("target", PROGRAM)
def test_equal_inputs_give_equal_bytes(tmp_path: Path, target: str, precision: str) -> None:
    options = {"target": target, "precision": precision}
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); from pathlib import Path\n"
        f"from test_compiler import build; build(Path(sys.argv[1]), **{options!r})"
    )
    one, two = build(tmp_path / "one", **options), tmp_path / "other" / "two"
    subprocess.run([sys.executable, "-c", code, str(two)], check=True)
    assert hashes(one) == hashes(two)
    assert str(tmp_path).encode() not in (one / PROGRAM[target]).read_bytes()


def test_the_default_target_is_cpu(tmp_path: Path) -> None:
    assert Container.open(build(tmp_path / "c")).manifest.target == "cpu"


@pytest.mark.parametrize("target", PROGRAM)
def test_a_container_holds_everything(tmp_path: Path, target: str) -> None:
    events: list[Event] = []
    folder = build(tmp_path / "c", progress=events.append, target=target)
    assert {item.name for item in folder.iterdir()} == {
        *TEXT,
        "manifest.json",
        PROGRAM[target],
        "weights.safetensors",
        "certificate.json",
        "specializations.json",
        "custom_io.yaml",
        "mdp_ts_1.json",
    }
    container = Container.open(folder)
    assert container.read_bytes("tokenizer.json") == TEXT["tokenizer.json"]
    assert json.loads(container.read_bytes("certificate.json"))["export"] == {"max_abs_error": 1e-6}
    assert [port.name for port in container.manifest.inputs][-1] == LAST_INPUT[target]
    assert [item.name for item in container.manifest.specialisations] == ["Prefill", "Decode"]
    assert {event.stage for event in events} == {"lower", "pack"}
    if target == "ort":
        onnx.checker.check_model(str(folder / "program.onnx"))


@pytest.mark.parametrize("target", PROGRAM)
def test_the_graph_is_left_as_it_was(tmp_path: Path, target: str) -> None:
    graph, _ = build_random(Size(continuous=True))
    before = [node.op_type for node in graph.model.graph]
    names = [value.name for value in graph.model.graph.inputs]
    options = CompileOptions(target=target, precision="int4", full_batch_size=2)
    compile_graph(graph, options, text_files={}, provenance={}, out=tmp_path / "c")
    assert [node.op_type for node in graph.model.graph] == before
    assert [value.name for value in graph.model.graph.inputs] == names


def test_a_target_that_cannot_be_compiled_for(tmp_path: Path) -> None:
    assert {"cpu", "ort"} <= set(available_targets())
    missing = sorted({"cuda", "qnn"} - set(available_targets()))
    for target in missing:
        with pytest.raises(CompileError, match=target) as error:
            build(tmp_path / "c", target=target)
        assert "cpu" in str(error.value.hint) and "ort" in str(error.value.hint)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ResourceError, match="disk is full"):
        build(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


CHILD = f"""
import sys, time; sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
from test_compiler import build
from qeff.container import writer
real = writer._Sink.write
def slowly(self, data):
    time.sleep(0.002)
    real(self, data)
writer._Sink.write = slowly
print("ready", flush=True)
build(Path(sys.argv[1]))
print("done", flush=True)
"""


def start(out: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(out)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def test_killed_at_any_moment_then_compiled_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for _ in range(4):
        child = start(tmp_path / "c")
        time.sleep(rng.uniform(0, 0.3))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        if (tmp_path / "c").exists():
            Container.open(tmp_path / "c", verify="full")
    build(tmp_path / "c")
    Container.open(tmp_path / "c", verify="full")
    assert [item.name for item in tmp_path.iterdir()] == ["c"]


def test_two_processes_compile_the_same_at_once(tmp_path: Path) -> None:
    children = [start(tmp_path / "c") for _ in range(2)]
    assert [child.communicate()[0] for child in children] == ["done\n"] * 2
    Container.open(tmp_path / "c", verify="full")
    assert [item.name for item in tmp_path.iterdir()] == ["c"]
