r"""Our server beside llama.cpp's, and what must hold whatever clients do.

    python benchmarks/serving.py --work FOLDER --container FOLDER \
        --peers-python PYTHON --gguf MODEL.gguf [--report FILE]
    python benchmarks/serving.py --work FOLDER --container FOLDER --holds

The first form sends the same prompts to ``qeff serve`` and to ``llama_cpp.server`` in turns, 8 at a
time, with 2 threads; both must hold the same weights in as many bits. ``--peers-python`` has
llama-cpp-python with its server's dependencies. The second form needs no peer; its container should
be compiled with ``--full-batch-size 64`` and ``--ctx-len 1024``, so that all streams can be in the
middle. Prints tables; the exit code is 1 where something does not hold. Works on Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from serving_load import contest, crowd, holds, servers
from serving_load.findings import Finding

from qeff.apps.load import drive
from qeff.apps.load.lengths import Lengths
from qeff.apps.load.prompts import Ask
from qeff.apps.load.sending import Target
from qeff.apps.server.footprint import full_tokens, token_bytes
from qeff.container import Container
from qeff.generate import Text

TEXT = Path(__file__).resolve().parent / "text.txt"


def compare(args: argparse.Namespace) -> tuple[str, bool]:
    """The contest; whether both bars are reached."""
    asks, num_input = make_asks(args)
    plan = contest.Plan(
        asks,
        args.concurrency,
        args.rounds,
        args.work,
        args.quiet_share,
        args.quiet_wait,
        num_input,
    )
    longest = args.input_len.most + args.output_len.most + 64
    kinds = [
        servers.ours(args.container, args.threads),
        servers.llama_cpp(args.peers_python, args.gguf, args.threads, longest),
    ]
    found = contest.measure(plan, kinds)
    text = contest.table(plan, found)
    return text, "MISSED" not in text and "WORSE" not in text


def make_asks(args: argparse.Namespace) -> tuple[list[Ask], int]:
    """Pieces of a text, each from another place, and how many tokens they are."""
    text = Text.from_container(Container.open(args.container))
    tokens = text.encode(TEXT.read_text())
    generator = np.random.default_rng(args.seed)
    inputs = args.input_len.draw(generator, args.requests)
    outputs = args.output_len.draw(generator, args.requests)
    asks = []
    for length, most in zip(inputs, outputs, strict=True):
        start = int(generator.integers(0, len(tokens) - length))
        words = text.decode(tokens[start : start + length])
        asks.append(Ask(words, most, len(text.encode(words))))
    return asks, sum(ask.num_tokens or 0 for ask in asks)


def sizes_of(args: argparse.Namespace) -> crowd.Sizes:
    """The crowd, and what keeps its container busy."""
    container = Container.open(args.container)
    options = container.manifest.options
    cache = int(token_bytes(container) * full_tokens(container))
    return crowd.Sizes(args.idle, args.queued, options.max_batch, options.ctx_len - 32, cache)


def hold(args: argparse.Namespace) -> tuple[str, bool]:
    """All checks, each on a server that is as the one before left it."""
    kind = servers.ours(
        args.container, args.threads, "--max-waiting", str(2 * (args.idle + args.queued))
    )
    with servers.Server(kind, args.work / "holds.log") as server:
        found = [
            asyncio.run(_with_target(server, lambda t: holds.disconnect(t, 20, 400))),
            asyncio.run(_with_target(server, lambda t: holds.leavers(t, 500, 0.5))),
            asyncio.run(_with_target(server, lambda t: holds.stopped_reader(t, 4, 640, 4))),
            asyncio.run(
                _with_target(server, lambda t: crowd.crowd(t, sizes_of(args), server.rss_bytes))
            ),
            killed(args, server),
        ]
        code = server.stop()
    lines = [line for finding in found for line in finding.lines()]
    lines.append(f"At its end the server was told to stop and left with {code}.")
    return "\n".join(lines), code == 0 and not any(finding.failures for finding in found)


async def _with_target(server: servers.Server, check) -> Finding:  # type: ignore[no-untyped-def]
    unnamed = Target(address=server.address, model="")
    target = Target(address=server.address, model=await drive.first_model(unnamed), timeout_s=1800)
    await drive.warm_up(target, Ask("Once upon a time", 4))
    return await check(target)


def killed(args: argparse.Namespace, server: servers.Server) -> Finding:
    """SIGKILL in the middle of streams and of a batch, then a start at the same address."""
    source, out = args.work / "batch-in.jsonl", args.work / "batch-out.jsonl"
    write_batch(source, args.batch_lines)
    out.unlink(missing_ok=True)
    words = [sys.executable, "-m", "qeff", "batch", str(source), str(out), "--quiet"]
    words += ["--base-url", str(server.address)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as batch:
        while batch.poll() is None and not (out.exists() and out.stat().st_size):
            time.sleep(0.01)
        found = asyncio.run(
            _with_target(server, lambda t: holds.break_off(t, args.streams, 200, server.kill))
        )
        num_before = len(out.read_text().splitlines()) if out.exists() else 0
        server.restart()
        code = batch.wait(900)
    found.seen["ready again after, s"] = f"{server.start_s:.2f}"
    answered = [json.loads(line)["custom_id"] for line in out.read_text().splitlines()]
    found.seen["batch lines answered"] = f"{len(answered)} of {args.batch_lines}"
    found.seen["before the kill"] = num_before
    found.expect(code == 0, f"the batch ended with {code}")
    found.expect(
        sorted(answered) == sorted(f"line {n}" for n in range(args.batch_lines)),
        "the batch's lines were not answered once each",
    )
    Container.open(args.container, verify="full")
    found.seen["container"] = "sound"
    return found


def write_batch(path: Path, num_lines: int) -> None:
    """Requests for the batch that runs beside the streams."""
    lines = []
    for n in range(num_lines):
        body = {"prompt": f"{n} times", "max_tokens": 32, "temperature": 0}
        line = {"custom_id": f"line {n}", "method": "POST", "url": "/v1/completions", "body": body}
        lines.append(json.dumps(line) + "\n")
    path.write_text("".join(lines))


def main() -> int:
    """Measure what was asked for, and print it."""
    args = parse_arguments()
    text, is_good = hold(args) if args.holds else compare(args)
    if args.report:
        args.report.write_text(text + "\n")
    print(text)
    return 0 if is_good else 1


def parse_arguments() -> argparse.Namespace:
    """Options, and their checks among each other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--work", type=Path, required=True, metavar="FOLDER", help="for logs and batches")
    add("--container", type=Path, required=True, metavar="FOLDER", help="what we serve")
    add("--holds", action="store_true", help="what must hold, instead of the contest")
    add("--peers-python", metavar="PYTHON", help="interpreter that has llama_cpp.server")
    add("--gguf", type=Path, help="what llama_cpp.server serves")
    add("--report", type=Path, metavar="FILE", help="write the tables there, too")
    add("--threads", type=int, default=2)
    add("--requests", type=int, default=32)
    add("--concurrency", type=int, default=8)
    add("--rounds", type=int, default=5)
    add("--input-len", type=Lengths.parse, default=Lengths(32, 256))
    add("--output-len", type=Lengths.parse, default=Lengths(64, 128))
    add("--seed", type=int, default=0)
    add("--idle", type=int, default=1000, help="event streams that wait")
    add("--queued", type=int, default=200)
    add("--streams", type=int, default=50, help="that are broken off")
    add("--batch-lines", type=int, default=300)
    add("--quiet-share", type=float, default=0.05)
    add("--quiet-wait", type=float, default=60)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if not args.holds and not (args.peers_python and args.gguf):
        parser.error("the contest needs --peers-python and --gguf")
    return args


if __name__ == "__main__":
    sys.exit(main())
