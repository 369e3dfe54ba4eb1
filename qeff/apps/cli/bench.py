"""``qeff bench``: tokens per second, time to first token, load time and memory of a model here.

The table, or one JSON object, goes to stdout. ``qeff bench serve`` measures a running server.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff.apps.terminal.containers import named_once, refuse_compile_options
from qeff.apps.terminal.flags import (
    add_format_flags,
    add_model_flags,
    compile_options,
    export_options,
    find_model,
)
from qeff.apps.terminal.parser import Parser, positive
from qeff.apps.terminal.running import add_gpu_flags, add_threads_flag
from qeff.apps.terminal.screen import amount

if TYPE_CHECKING:
    from qeff.apps.bench.measure import Plan
    from qeff.core.progress import Progress

HELP = "measure how fast a model runs here; bench serve: what clients of a server see"
WORDS = {"serve": "qeff.apps.load.command"}

_BATCH_SIZES = (1, 8)
_ROUND = 64  # a context that is a multiple of this, so that near lengths share a container


def add_arguments(parser: Parser) -> None:
    """What to measure, and of which model."""
    parser.usage = f"{parser.prog} [MODEL] [options]"
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="container, checkpoint folder, .gguf file or hub id; default: the built-in model",
    )
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--prompt-len", type=positive, default=512, metavar="N", help="prompt to prefill; 512"
    )
    group.add_argument(
        "--short-len",
        type=positive,
        default=32,
        metavar="N",
        help="prompt before decoding, and of the time to first token; 32",
    )
    group.add_argument(
        "--generation-len", type=positive, default=128, metavar="N", help="tokens to decode; 128"
    )
    group.add_argument(
        "--batch-sizes",
        type=sizes,
        metavar="N,N",
        help="sequences that decode together; 1,8, or 1 where a container runs fewer than 8",
    )
    group.add_argument(
        "--rounds", type=positive, default=5, metavar="N", help="measurements of each figure; 5"
    )
    add_threads_flag(group)
    add_gpu_flags(group)
    group.add_argument("--json", action="store_true", help="print one JSON object")
    add_model_flags(parser)
    add_format_flags(parser.add_argument_group("compile"))


def sizes(text: str) -> tuple[int, ...]:
    """Batch sizes with commas between them."""
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))


def run(args: argparse.Namespace) -> int:
    """Find or build the container, measure, print."""
    from qeff.apps.bench import measure
    from qeff.container import Container

    plan = measure.Plan(
        prompt_len=args.prompt_len,
        short_len=args.short_len,
        generation_len=args.generation_len,
        batch_sizes=args.batch_sizes or _BATCH_SIZES,
        rounds=args.rounds,
        threads=args.threads,
        vram_budget=args.vram_budget,
        deterministic=args.deterministic,
    )
    with args.screen.progress() as progress:
        container = Container.open(find_container(args, plan, progress))
        if args.batch_sizes is None and container.manifest.options.max_batch < max(_BATCH_SIZES):
            plan = replace(plan, batch_sizes=_BATCH_SIZES[:1])
        found = measure.run(container, plan, progress=progress)
    print(json.dumps(found) if args.json else "\n".join(lines(found)))
    return 0


def find_container(args: argparse.Namespace, plan: Plan, progress: Progress) -> Path:
    """The container that MODEL is, or the one that is built of it."""
    from qeff.apps.container_path import resolve
    from qeff.apps.pipeline import build

    args.model_name = named_once(args)
    if args.model_name is not None and (folder := resolve(args.model_name)):
        refuse_compile_options(args, args.model_name, but=("prompt_len",))  # which is the plan's
        return folder
    wanted = argparse.Namespace(**{**vars(args), **_shapes(plan)})
    return build(
        find_model(args, progress),
        export_options(wanted),
        compile_options(wanted),
        progress=progress,
    )


def _shapes(plan: Plan) -> dict[str, Any]:
    """What decides a container's sizes, large enough for the plan."""
    ctx_len = -(-plan.ctx_len // _ROUND) * _ROUND
    return {
        "ctx_len": ctx_len,
        "prompt_len": None,
        "batch_size": max(plan.batch_sizes),
        "full_batch_size": None,
        "kv_cache_batch_size": None,
        "device_group": None,
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The figures for reading: median, then the least and the most of the rounds."""
    spread, limits = found["spread"], found["limits"]
    form = found["precision"].get("linear") or found["precision"].get("asked", "")
    yield f"{found['model']}, {found['target']} {form}, {amount(found['weights_bytes'])} of weights"
    yield _line(f"prefill {found['prompt_len']}", found, spread, "prefill_tok_s")
    yield _line(f"decode {found['generation_len']}", found, spread, "decode_tok_s")
    for size, rate in found["batch_decode_tok_s"].items():
        least, most = spread["batch_decode_tok_s"][size]
        name = f"decode, batch {size}"
        yield f"{name:<24}{rate:>10.1f} tokens/s   ({least:.1f} to {most:.1f})"
    yield _line(f"first token of {found['short_len']}", found, spread, "ttft_s")
    yield _line("load", found, spread, "load_s")
    yield _line("load to first token", found, spread, "first_token_s")
    yield f"{'peak memory':<24}{amount(found['peak_rss_bytes']):>10}"
    rate = limits["read_bytes_s"] / 1e9
    where = f"{limits['threads']} threads" if limits["threads"] else "the device"
    yield f"{'machine reads':<24}{rate:>10.1f} GB/s       ({where})"
    if limits["int8_mac_s"] is not None:
        yield f"{'machine multiplies':<24}{limits['int8_mac_s'] / 1e9:>10.1f} G int8 MAC/s"
    yield f"{'bandwidth in decode':<24}{found['decode_bandwidth_share']:>10.1%}"


def _line(name: str, found: dict[str, Any], spread: dict[str, Any], key: str) -> str:
    least, most = spread[key]
    if key.endswith("_tok_s"):
        return f"{name:<24}{found[key]:>10.1f} tokens/s   ({least:.1f} to {most:.1f})"
    return f"{name:<24}{found[key]:>10.3f} s          ({least:.3f} to {most:.3f})"
