"""What inspect says of a container for the native engine: formats, engine and quality."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import qeff
from qeff.apps.cli.inspect import lines
from qeff.apps.cli.main import main
from qeff.apps.description import describe_container
from qeff.core.errors import ContainerError
from qeff.core.options import CompileOptions, ExportOptions


@pytest.fixture
def folder(tiny: Path, cache: Path) -> Path:
    overrides = (("*down_proj*", "int8"),)
    options = CompileOptions(ctx_len=64, precision="int4", precision_overrides=overrides)
    return qeff.build(str(tiny), ExportOptions(), options)


def test_a_cpu_container_is_told_by_its_formats(folder: Path, capsys) -> None:
    assert main(["inspect", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    sizes = found["weights"]["bytes_by_format"]
    assert set(sizes) == {"f32", "q4_0", "q8_0"}
    # Two layers of 64 x 128 down and 32 x 64 values, and two tables of 311 rows, in 8 bits.
    panel = 544  # bytes of a q8_0 block of 32 columns, 16 rows
    in_layers = 2 * (64 // 16) * (128 // 32) + 2 * (32 // 16) * (64 // 32)
    assert sizes["q8_0"] == (in_layers + 2 * 20 * (64 // 32)) * panel
    assert found["program"]["engine"] == {"layout": 2, "kv": "fp16"}
    assert found["program"]["ops"]["attention"] == 2
    quality = found["certificate"]["quality"]
    assert quality["kl"] > 0 and 0 <= quality["top1"] <= 1 and quality["tokens"] == 64


def test_it_reads_well(folder: Path) -> None:
    shown = {line[:14].strip(): line[14:] for line in lines(describe_container(folder))}
    assert shown["target"] == "cpu"
    assert shown["precision"] == (
        "linear int4+int8, value int8, head int8, embedding int8, other fp32, kv fp16"
        " (asked for: int4)"
    )
    assert shown["weights"].startswith("f32 ") and ", q4_0 " in shown["weights"]
    assert " ops: 15 linear, " in shown["program"]
    assert sorted(shown["engine"].split(", ")) == ["kv fp16", "layout 2"]
    assert shown["quality"].startswith("KL divergence ") and "page of English" in shown["quality"]


def test_an_ort_container_has_no_program_of_ours(tiny: Path, cache: Path) -> None:
    options = CompileOptions(target="ort", ctx_len=64, precision="int8")
    found = describe_container(qeff.build(str(tiny), ExportOptions(), options))
    assert "program" not in found and found["weights"]["bytes_by_format"]
    shown = {line.split()[0] for line in lines(found)}
    assert "engine" not in shown and "quality" in shown


def test_a_program_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qeff.container.Container.read_bytes", lambda self, name: b"{")
    with pytest.raises(ContainerError, match="malformed"):
        describe_container(folder)
