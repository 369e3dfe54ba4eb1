"""Health, readiness, metrics and the dashboard's numbers."""

from __future__ import annotations

import math
import threading
import time

import pytest

from qeff.apps.server import measures, meters
from qeff.apps.server.dashboard import dashboard, percentiles
from qeff.apps.server.meters import BUCKETS, HISTORY_S, Meter
from qeff.apps.server.metrics import exposition

ASK = {
    "prompt": "my name is the flat earth theory belief" * 2,
    "max_tokens": 6,
    "temperature": 0,
    "ignore_eos": True,
}
VLLM = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:num_preemptions",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens",
)


def families(text: str) -> dict:
    parser = pytest.importorskip("prometheus_client.parser")
    return {one.name: one for one in parser.text_string_to_metric_families(text)}


def value(text: str, name: str, **labels: str) -> float:
    for family in families(text).values():
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"there is no {name} with {labels}")


def test_health_ready_version(server) -> None:
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/ready").json() == {"status": "ready"}
    assert set(server.get("/version").json()) == {"version", "python"}


def test_metrics_are_prometheus_text(server) -> None:
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = families(answer.text)
    assert set(VLLM) <= set(found)
    assert all(one.type != "unknown" for one in found.values())


def test_a_request_shows_in_all_numbers(run_server) -> None:
    with run_server() as one:
        for _ in range(2):
            assert one.post("/v1/completions", **ASK).status_code == 200
        text = one.get("/metrics").text
        labels = {"model_name": "tiny"}
        num_prompt = one.post("/tokenize", prompt=ASK["prompt"]).json()["count"]
        assert value(text, "vllm:generation_tokens_total", **labels) == 12
        assert value(text, "vllm:prompt_tokens_total", **labels) == 2 * num_prompt
        success = {"finished_reason": "length", **labels}
        assert value(text, "vllm:request_success_total", **success) == 2
        assert value(text, "vllm:time_to_first_token_seconds_count", **labels) == 2
        assert value(text, "vllm:inter_token_latency_seconds_count", **labels) == 10
        assert value(text, "vllm:e2e_request_latency_seconds_count", **labels) == 2
        assert value(text, "vllm:e2e_request_latency_seconds_bucket", le="+Inf", **labels) == 2
        queries = value(text, "vllm:prefix_cache_queries_total", **labels)
        assert 0 < value(text, "vllm:prefix_cache_hits_total", **labels) < queries
        assert value(text, "vllm:kv_cache_usage_perc", **labels) == 0
        stats = one.get("/stats").json()
        assert stats["finished"] == 2 and stats["output_tokens"] == 12
        assert 0 < stats["prefix_hit_rate"] < 1 and stats["acceptance"] is None
        for name in ("ttft_s", "itl_s", "e2e_s"):
            numbers = [stats[name][f"p{share}"] for share in (50, 90, 95, 99)]
            assert numbers[0] > 0 and numbers == sorted(numbers)
        assert all(len(line) == HISTORY_S for line in stats["history"].values())
        assert stats["models"]["tiny"]["output_tokens"] == 12


def test_history_moves(run_server) -> None:
    with run_server() as one:
        one.post("/v1/completions", **ASK)
        one.wait_until(lambda stats: sum(stats["history"]["tokens_per_s"]) == 6, 4)
        assert sum(one.get("/stats").json()["history"]["finished"]) == 1


def test_health_is_quick_under_load(server) -> None:
    is_done = threading.Event()
    long = "the flat earth theory belief that sun rises from once upon a time " * 12

    def ask() -> None:
        while not is_done.is_set():
            server.post("/v1/completions", **{**ASK, "max_tokens": 60, "prompt": long[:300]})
            server.post("/v1/completions", prompt="time " * 20_000)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    took = []
    with server.client() as client:
        for _ in range(40):
            began = time.perf_counter()
            assert client.get("/health").status_code == 200
            took.append(time.perf_counter() - began)
            time.sleep(0.01)
    is_done.set()
    for thread in threads:
        thread.join()
    # Client and server share a process and its lock here: the middle tells, the worst may not.
    assert sorted(took)[20] < 0.1


# ---- the counts by themselves ------------------------------------------------------------------


def test_buckets_hold_what_is_at_most_their_end() -> None:
    histogram = meters.Histogram((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(number)
    assert histogram.snapshot() == {"counts": [2, 2, 1], "sum": 7.5}


def test_old_seconds_are_forgotten() -> None:
    now = [1000.0]
    meter = Meter(clock=lambda: now[0])
    for _ in range(3 * HISTORY_S):
        now[0] += 1
        meter.count("output_tokens", 2)
        meter.observe("ttft_s", 0.5)
    snapshot = meter.snapshot()
    assert len(snapshot["seconds"]) == HISTORY_S
    assert snapshot["totals"]["output_tokens"] == 6 * HISTORY_S
    assert len(snapshot["recent"]["ttft_s"]) <= 301


def gathered(num_tokens: int) -> dict:
    meter = Meter(clock=lambda: 5000.0)
    meter.count("output_tokens", num_tokens)
    meter.observe("ttft_s", 0.1 * num_tokens)
    meter.finish("stop")
    meter.level("running", num_tokens)
    engine = {"running": 1, "waiting": 2, "blocks": 10, "used_blocks": num_tokens, "open": 1}
    totals = {"num_accepted": 1, "num_drafted": 2, "num_preemptions": 0, "num_drafts": 1}
    totals |= {"num_steps": 3, "num_step_tokens": 4, "session_s": 0.5}
    one = {"meter": meter.snapshot(), "totals": totals, "engine": engine}
    return {"models": {"m": one}, "refused": 1, "inside": 3, "draining": False, "replicas": 1}


def test_replicas_add_up() -> None:
    whole = measures.add([gathered(2), gathered(4)])
    shown = dashboard(whole, now=5001.0)
    assert (shown["running"], shown["waiting"], shown["replicas"]) == (2, 4, 2)
    assert shown["cache_use"] == 0.3
    assert shown["history"]["tokens_per_s"][-1] == 6
    assert shown["history"]["running"][-1] == 6
    assert shown["acceptance"] == 0.5
    assert shown["ttft_s"]["p99"] == pytest.approx(0.4)
    text = exposition(whole)
    assert value(text, "vllm:time_to_first_token_seconds_count", model_name="m") == 2
    assert value(text, "qeff:replicas") == 2


def test_percentiles() -> None:
    assert percentiles([]) == {"p50": None, "p90": None, "p95": None, "p99": None}
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "p95": 3.0, "p99": 3.0}
    found = percentiles(list(range(1, 101)))
    assert found == {"p50": 50, "p90": 90, "p95": 95, "p99": 99}


def test_buckets_rise() -> None:
    for ends in BUCKETS.values():
        assert list(ends) == sorted(set(ends)) and math.isfinite(ends[-1])


# ---- tokens ------------------------------------------------------------------------------------


def test_tokens_there_and_back(server) -> None:
    for text in ("my name is", "é😀 x", ""):
        found = server.post("/tokenize", prompt=text, return_token_strs=True).json()
        assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
        assert found["max_model_len"] == 256
        assert server.post("/detokenize", tokens=found["tokens"]).json()["prompt"] == text


def test_tokens_of_a_conversation(server) -> None:
    messages = [{"role": "user", "content": "my name"}]
    found = server.post("/tokenize", messages=messages).json()
    text = server.post("/detokenize", tokens=found["tokens"]).json()["prompt"]
    assert text == "<user>my name<assistant>"


@pytest.mark.parametrize("model", ["tooled", "thinking"])
def test_tokens_of_a_conversation_are_those_that_chat_takes(talkers, model) -> None:
    function = {"name": "clock", "description": "time", "parameters": {"type": "object"}}
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "my name"}]}],
        "tools": [{"type": "function", "function": function}],
    }
    counted = talkers.post("/tokenize", **asked).json()["count"]
    answer = talkers.post("/v1/chat/completions", **asked, max_tokens=1).json()
    assert counted == answer["usage"]["prompt_tokens"] > 40, "the tools are told too"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}),
        ("/tokenize", {"prompt": 3}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"prompt": "a" * 2_000_001}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [100_000]}),
        ("/detokenize", {"tokens": [2**40]}),
    ],
)
def test_tokens_that_cannot_be(server, path, body) -> None:
    answer = server.post(path, **body)
    assert answer.status_code == 400 and answer.json()["error"]["message"]
