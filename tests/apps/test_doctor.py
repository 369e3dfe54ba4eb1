"""What doctor says about a machine: facts, verdicts with reasons, and no wait for a dead hub."""

from __future__ import annotations

import json
import socket
import time

import pytest

import qeff
from qeff._native import library
from qeff.apps import machine
from qeff.apps.cli import doctor
from qeff.apps.cli.main import main
from qeff.core.options import TARGETS, CompileOptions


def test_json_has_every_target(empty_cache, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("QEFF_ISA", raising=False)
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["targets"]) == set(TARGETS)
    assert facts["targets"]["cpu"]["works"] and facts["engine"]["isas"][-1] == "scalar"
    assert facts["targets"]["ort"]["works"] and facts["targets"]["reference"]["works"]
    assert not facts["targets"]["qaic"]["works"] and facts["targets"]["qaic"]["what"]
    assert facts["processor"]["cores"] >= 1 and facts["memory_bytes"] > 1e8
    assert facts["hub"] == {"reachable": False, "why": "HF_HUB_OFFLINE is set"}
    assert facts["cache"]["path"] == str(empty_cache) and facts["cache"]["bytes"] == 0
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "cpu         yes native engine" in out and "ort         yes" in out


def cpu_verdict(*isas: str, forced: str | None = None, **more: str) -> doctor.Verdict:
    engine = {"isas": list(isas), "forced": forced, **more}
    return doctor.verdict("cpu", {"engine": engine, "processor": {"physical_cores": 6}})


def test_the_native_engine_s_instruction_sets_are_told() -> None:
    found = cpu_verdict("avx512", "avx2", "scalar")
    assert found.works and found.hint is None
    assert found.what == "native engine: avx512, avx2, scalar (best first), 6 threads"
    assert "avx2 (by QEFF_ISA" in cpu_verdict("avx512", "avx2", forced="avx2").what
    wrong = cpu_verdict("neon", "scalar", forced="avx2")
    assert not wrong.works and "avx2" in wrong.what and "QEFF_ISA" in str(wrong.hint)


def test_an_engine_that_was_not_built(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    monkeypatch.setattr(machine, "load", library.load.__wrapped__)
    facts = machine.engine()
    assert facts["isas"] == []
    found = cpu_verdict(why=facts["why"], hint=facts["hint"])
    assert not found.works and "not built" in found.what and "make native" in str(found.hint)
    (tmp_path / library.NAME).write_bytes(b"no library")
    facts = machine.engine()
    assert "cannot be loaded" in facts["why"] and "make native" in facts["hint"]


def test_the_engine_takes_as_many_threads_as_doctor_says(tiny, cache, monkeypatch) -> None:
    monkeypatch.delenv("QEFF_ISA", raising=False)
    options = CompileOptions(ctx_len=32)
    path = qeff.build(str(tiny), qeff.ExportOptions(), options)
    session = qeff.open_session(qeff.Container.open(path))
    assert session.info.num_threads == machine.processor()["physical_cores"]
    assert session.info.isa.decode() == machine.engine()["isas"][0]
    session.close()


def test_processors_that_share_a_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = {0: ("0", "0"), 1: ("0", "1"), 4: ("0", "0"), 5: ("1", "0")}
    monkeypatch.setattr(machine, "_usable_processors", lambda: list(cores))
    monkeypatch.setattr(machine, "_core_of", cores.__getitem__)
    found = machine.processor()
    assert (found["cores"], found["physical_cores"]) == (4, 3)
    assert doctor._cores_line(found) == "3 cores with 4 hardware threads"


def test_a_missing_library_is_told_with_the_way_to_get_it() -> None:
    found = dict.fromkeys(machine.LIBRARIES, "1.0") | {"torch": None, "onnxruntime": None}
    build = doctor._build_verdict(found)
    assert not build.works and "torch" in build.what and "pip install" in str(build.hint)
    ort = doctor.verdict("ort", {"libraries": found})
    assert not ort.works and ort.hint == "pip install onnxruntime"


def test_a_dead_hub_is_noticed_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_HUB_TIMEOUT", "0.5")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes calls and never answers
        began = time.monotonic()
        answer = machine._ask(f"http://127.0.0.1:{silent.getsockname()[1]}/")
    assert answer == {"reachable": False, "why": "timed out"}
    assert time.monotonic() - began < 5


def test_a_cache_that_is_a_file_cannot_be_written(monkeypatch, tmp_path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "file"))
    assert not machine.cache()["can_write"]
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "folder"))
    assert machine.cache()["can_write"]


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_time_that_is_none_is_the_users_mistake(text: str, monkeypatch, capsys) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("QEFF_HUB_TIMEOUT", text)
    assert main(["doctor"]) == 2
    assert f"QEFF_HUB_TIMEOUT is '{text}', which is no number" in capsys.readouterr().err
