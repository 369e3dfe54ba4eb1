"""A server's numbers as Prometheus reads them.

Names are vLLM's where the meaning is equal, so that dashboards made for it can be used; others
begin with ``qeff:``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qeff.apps.server.measures import cache_use
from qeff.apps.server.meters import BUCKETS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISHES = ("stop", "length", "abort", "tool_calls")

# name, help, and where the number is: the part of a model's numbers and the key in it.
GAUGES = (
    ("vllm:num_requests_running", "Sequences that run.", "engine", "running"),
    ("vllm:num_requests_waiting", "Sequences that wait.", "engine", "waiting"),
    ("qeff:model_open", "Processes that have the model in memory.", "engine", "open"),
    ("qeff:cache_blocks", "Blocks of the cache.", "engine", "blocks"),
    ("qeff:cache_blocks_used", "Blocks that running sequences hold.", "engine", "used_blocks"),
)
COUNTERS = (
    ("vllm:num_preemptions", "Sequences that gave their blocks back.", "num_preemptions"),
    ("vllm:spec_decode_num_drafts", "Drafts made.", "num_drafts"),
    ("vllm:spec_decode_num_draft_tokens", "Tokens of drafts.", "num_drafted"),
    ("vllm:spec_decode_num_accepted_tokens", "Tokens of drafts that were kept.", "num_accepted"),
    ("qeff:steps", "Steps of the engine.", "num_steps"),
    ("qeff:step_tokens", "Tokens run in steps.", "num_step_tokens"),
    ("qeff:session_seconds", "Seconds inside the session.", "session_s"),
)
METERS = (
    ("vllm:prompt_tokens", "Tokens of prompts.", "prompt_tokens"),
    ("vllm:generation_tokens", "Tokens made.", "output_tokens"),
    ("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", "prefix_queries"),
    ("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", "prefix_hits"),
)
HISTOGRAMS = (
    ("vllm:time_to_first_token_seconds", "From the request to its first token.", "ttft_s"),
    ("vllm:inter_token_latency_seconds", "From one token to the next.", "itl_s"),
    ("vllm:e2e_request_latency_seconds", "From the request to its end.", "e2e_s"),
    ("vllm:request_queue_time_seconds", "In the queue.", "queue_s"),
    ("vllm:request_prefill_time_seconds", "Reading the prompt.", "prefill_s"),
    ("vllm:request_decode_time_seconds", "After the first token.", "decode_s"),
    ("vllm:request_prompt_tokens", "Tokens of a prompt.", "prompt_tokens"),
    ("vllm:request_generation_tokens", "Tokens of an output.", "output_tokens"),
)


def exposition(gathered: Mapping[str, Any]) -> str:
    """The text that /metrics gives."""
    return "\n".join([*_lines(gathered), ""])


def _lines(gathered: Mapping[str, Any]) -> Iterator[str]:
    models = gathered["models"]
    for name, text, part, key in GAUGES:
        yield from _head(name, text, "gauge")
        for model, numbers in models.items():
            yield f"{name}{_labels(model)} {_number(numbers[part][key])}"
    name = "vllm:kv_cache_usage_perc"
    yield from _head(name, "The part of the cache that is in use, from 0 to 1.", "gauge")
    for model, numbers in models.items():
        yield f"{name}{_labels(model)} {_number(cache_use(numbers['engine']))}"
    for name, text, key in COUNTERS:
        yield from _counter(name, text, {m: one["totals"][key] for m, one in models.items()})
    for name, text, key in METERS:
        totals = {m: one["meter"]["totals"].get(key, 0) for m, one in models.items()}
        yield from _counter(name, text, totals)
    yield from _successes(models)
    for name, text, key in HISTOGRAMS:
        yield from _histogram(name, text, key, models)
    yield from _head("qeff:requests_refused", "Requests that found the queue full.", "counter")
    yield f"qeff:requests_refused_total {gathered['refused']}"
    yield from _head("qeff:replicas", "Processes that serve.", "gauge")
    yield f"qeff:replicas {gathered['replicas']}"


def _successes(models: Mapping[str, Any]) -> Iterator[str]:
    name = "vllm:request_success"
    yield from _head(name, "Outputs that ended, by reason.", "counter")
    for model, numbers in models.items():
        for reason in FINISHES:
            count = numbers["meter"]["finishes"].get(reason, 0)
            yield f"{name}_total{_labels(model, finished_reason=reason)} {count}"


def _counter(name: str, text: str, numbers: Mapping[str, float]) -> Iterator[str]:
    yield from _head(name, text, "counter")
    for model, number in numbers.items():
        yield f"{name}_total{_labels(model)} {_number(number)}"


def _histogram(name: str, text: str, key: str, models: Mapping[str, Any]) -> Iterator[str]:
    yield from _head(name, text, "histogram")
    for model, numbers in models.items():
        histogram = numbers["meter"]["histograms"][key]
        total = 0
        for end, count in zip((*BUCKETS[key], "+Inf"), histogram["counts"], strict=True):
            total += count
            yield f"{name}_bucket{_labels(model, le=str(end))} {total}"
        yield f"{name}_sum{_labels(model)} {_number(histogram['sum'])}"
        yield f"{name}_count{_labels(model)} {total}"


def _head(name: str, text: str, kind: str) -> Iterator[str]:
    full = f"{name}_total" if kind == "counter" else name
    yield f"# HELP {full} {text}"
    yield f"# TYPE {full} {kind}"


def _labels(model: str, **more: str) -> str:
    pairs = {"model_name": model, **more}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.9g}"
