"""What must hold whatever clients do, small: ``benchmarks/serving.py --holds`` runs it whole."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import qeff
from qeff.apps.load.client import Address
from qeff.apps.load.sending import Target

BENCHMARKS = Path(qeff.__file__).parent.parent / "benchmarks"


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("serving_load.holds")


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Makes steps longer than messages take, as a real model's are."""
    from qeff.backends.cpu.session import NativeSession

    step = NativeSession.step

    def slow(seconds: float) -> None:
        def slow_step(session, batch):
            time.sleep(seconds)
            return step(session, batch)

        monkeypatch.setattr(NativeSession, "step", slow_step)

    return slow


def target(server) -> Target:
    return Target(address=Address.parse(server.url), model="tiny", timeout_s=60)


def test_a_crowd_loses_nothing(holds, run_server, slow_steps, monkeypatch) -> None:
    crowd = importlib.import_module("serving_load.crowd")
    monkeypatch.setattr(crowd, "IDLE_S", 0.5)
    monkeypatch.setattr(crowd, "WAIT_S", 10.0)
    slow_steps(0.01)
    sizes = crowd.Sizes(num_idle=50, num_queued=30, num_busy=8, busy_tokens=200)
    with run_server(max_waiting=200) as server:
        # Client, server and engine share one process here, and its lock.
        found = asyncio.run(crowd.crowd(target(server), sizes, lambda: 0, health_s=2.0))
    assert found.failures == [], found.seen
    assert found.seen["queued answered"] == "30 of 30"
    assert found.seen["idle answered"] == "50 of 50"


def test_a_client_that_stops_reading_holds_nobody_up(holds, server) -> None:
    found = asyncio.run(holds.stopped_reader(target(server), 3, 100, 3, rounds=2, slack=3.0))
    assert found.failures == [], found.seen


def test_a_client_that_leaves_frees_its_blocks(holds, server, slow_steps) -> None:
    slow_steps(0.05)
    found = asyncio.run(holds.disconnect(target(server), 5, 200, more_steps=4))
    assert found.failures == [], found.seen
    assert found.seen["running"] == 0


def test_clients_that_leave_at_any_moment_harm_nobody(holds, server) -> None:
    found = asyncio.run(holds.leavers(target(server), 150, 0.06))
    assert found.failures == [], found.seen


def test_a_killed_server_breaks_off_cleanly(holds, container, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS.parent))
    serving = importlib.import_module("serving")
    servers = importlib.import_module("serving_load.servers")
    args = argparse.Namespace(work=tmp_path, container=container, streams=20, batch_lines=60)
    with servers.Server(servers.ours(container, 1), tmp_path / "log") as server:
        found = serving.killed(args, server)
        assert found.failures == [], found.seen
        assert found.seen["batch lines answered"] == "60 of 60"
        assert server.stop() == 0, servers.tail(tmp_path / "log")


def test_the_bars_of_the_contest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    contest = importlib.import_module("serving_load.contest")
    rounds = [
        {"start_s": start, "output_throughput": 30.0, "p95_ttft_ms": 5.0} for start in (1.4, 0.9)
    ]
    theirs = contest.Measured([{"output_throughput": 10.0, "p95_ttft_ms": 9.0}])
    good = "\n".join(contest.verdicts({"ours": contest.Measured(rounds), "theirs": theirs}))
    assert "0.90 s after its start" in good and "MISSED" not in good and "WORSE" not in good
    slow = contest.verdicts({"ours": contest.Measured(rounds[:1]), "theirs": theirs})
    assert "MISSED" in slow[0]
