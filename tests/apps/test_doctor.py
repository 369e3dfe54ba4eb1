"""What doctor says about a machine: facts, verdicts with reasons, and no wait for a dead hub."""

from __future__ import annotations

import json
import socket
import time

import pytest

from qeff.apps import machine
from qeff.apps.cli import doctor
from qeff.apps.cli.main import main
from qeff.core.options import TARGETS


def test_json_has_every_target(empty_cache, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["targets"]) == set(TARGETS)
    assert facts["targets"]["ort"]["works"] and facts["targets"]["reference"]["works"]
    assert not facts["targets"]["qaic"]["works"] and facts["targets"]["qaic"]["what"]
    assert facts["processor"]["cores"] >= 1 and facts["memory_bytes"] > 1e8
    assert facts["hub"] == {"reachable": False, "why": "HF_HUB_OFFLINE is set"}
    assert facts["cache"]["path"] == str(empty_cache) and facts["cache"]["bytes"] == 0
    assert main(["doctor"]) == 0
    assert "ort         yes" in capsys.readouterr().out


def test_a_missing_library_is_told_with_the_way_to_get_it() -> None:
    found = dict.fromkeys(machine.LIBRARIES, "1.0") | {"torch": None, "onnxruntime": None}
    build = doctor._build_verdict(found)
    assert not build.works and "torch" in build.what and "pip install" in str(build.hint)
    ort = doctor.verdict("ort", found, [])
    assert not ort.works and ort.hint == "pip install onnxruntime"


def test_a_dead_hub_is_noticed_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_HUB_TIMEOUT", "0.5")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes calls and never answers
        began = time.monotonic()
        answer = machine._ask(f"http://127.0.0.1:{silent.getsockname()[1]}/")
    assert answer == {"reachable": False, "why": "timed out"}
    assert time.monotonic() - began < 5
