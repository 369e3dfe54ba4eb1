"""The CPU engine beside the engines people run, on one checkpoint: the table that must hold.

    python benchmarks/cpu.py --peers-python P/bin/python --peers-models MODELS --work FOLDER

MODELS holds one checkpoint as the peers want it: ``gguf/{f16,q4_0,q4_0-pure,q8_0}.gguf``,
``ort-int4`` and ``ort-int8`` of onnxruntime-genai's builder, and ``hf``, the float checkpoint with
its tokenizer. Containers are compiled into FOLDER from ``gguf/f16.gguf``. Every measurement has a
process of its own, rounds are interleaved, and each waits until the machine is quiet. Measurements
go to FOLDER/measurements.jsonl; ``--report`` prints the table of such a file again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from contest import contestants, limits, report
from contest.contestants import Contestant
from contest.figures import BIG, BIG_PEER, KL_AIM, Measurements
from contest.quiet import wait_until_quiet

HERE = Path(__file__).resolve().parent
MEASUREMENTS = "measurements.jsonl"


class WorkerError(Exception):
    """A worker's process failed; the text is its last words."""


class Bench:
    """One run: its options, its interpreters, and the file that rows go to."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.work: Path = args.work.resolve()
        self.models: Path = args.peers_models.resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self._failed: set[tuple[str, str]] = set()
        self._rows = (self.work / MEASUREMENTS).open("w")

    def write(self, **row: Any) -> None:
        """Add a row to the measurements."""
        self._rows.write(json.dumps(row) + "\n")
        self._rows.flush()

    def call(self, engine: str, task: str, **job: Any) -> dict[str, Any]:
        """One task in a worker's process, under the interpreter that has the engine."""
        python = sys.executable if engine == "container" else self.args.peers_python
        result, order = self.work / "result.json", self.work / "job.json"
        result.unlink(missing_ok=True)
        job |= {"engine": engine, "task": task, "result": str(result)}
        job |= {"threads": self.args.threads, "ctx_len": self.args.ctx_len}
        order.write_text(json.dumps(job))
        paths = [str(HERE), str(HERE.parent)] if engine == "container" else [str(HERE)]
        more = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(self.args.threads)}
        try:
            done = subprocess.run(
                [python, "-m", "contest.worker", str(order)],
                env=os.environ | more | {"HF_HUB_OFFLINE": "1"},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.args.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise WorkerError(f"took longer than {self.args.timeout:.0f} s") from error
        if done.returncode or not result.is_file():
            # The end of a trace, without its lines of code.
            lines = [line for line in done.stderr.splitlines() if line[:1].strip()]
            said = [line for line in lines if not line.startswith("Traceback")]
            raise WorkerError(" ".join(said[-2:]) or f"ended with {done.returncode}")
        return json.loads(result.read_text())

    def measure(self, who: Contestant, task: str, **job: Any) -> None:
        """One task of a contestant once the machine is quiet; a failure is a row, too."""
        if (who.name, task) in self._failed:
            return
        is_quiet = wait_until_quiet(self.args.quiet_share, self.args.quiet_wait)
        try:
            result = self.call(who.engine, task, model=who.model, **job)
        except WorkerError as error:
            self.note_failure(who.name, task, error)
            return
        self.write(kind=task, contestant=who.name, quiet=is_quiet, **result)
        print(f"{task:<11} {who.name}{'' if is_quiet else ' (disturbed)'}", file=sys.stderr)

    def note_failure(self, name: str, task: str, error: WorkerError) -> None:
        """The report says what is missing and why; the task is not tried again."""
        self._failed.add((name, task))
        self.write(kind="failure", contestant=name, task=task, why=str(error))
        print(f"{task:<11} {name}: failed: {error}", file=sys.stderr)


def main() -> int:
    """Measure, or read measurements, and print the table."""
    args = parse_arguments()
    if args.report is None:
        try:
            run(Bench(args))
        except WorkerError as error:
            print(f"cannot measure: {error}", file=sys.stderr)
            return 1
    path = args.report or args.work / MEASUREMENTS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    print(report.render(Measurements(rows, args.max_others)))
    return 0


def run(bench: Bench) -> None:
    """All rounds of all contestants."""
    args = bench.args
    tokens = read_tokens(bench.models)
    everyone = list(gather(bench))
    program = limits.build(bench.work)
    first_limits = limits.measure(program, args.threads)
    describe(bench, everyone, first_limits["int8_instruction"])
    bench.write(kind="limits", **first_limits)
    prompts = [tokens[i * 32 : (i + 1) * 32] for i in range(args.sequences)]
    speed = {"num_new": args.new_tokens, "repeats": args.repeats}
    single = speed | {"prompts": prompts[:1], "long_prompt": tokens[: args.long_prompt]}
    for round_idx in range(args.rounds):
        wait_until_quiet(args.quiet_share, args.quiet_wait)
        bench.write(kind="limits", **limits.measure(program, args.threads))
        turn = round_idx % len(everyone)  # nobody is always the first
        for who in everyone[turn:] + everyone[:turn]:
            if "single" in who.tasks:
                bench.measure(who, "single", **single)
            if "batch" in who.tasks:
                bench.measure(who, "batch", **speed, prompts=prompts)
    if args.divergence:
        compare(bench, everyone, tokens)


def compare(bench: Bench, everyone: list[Contestant], tokens: list[int]) -> None:
    """Distances of distributions from float32, over windows of the text."""
    length = bench.args.window
    windows = [tokens[i : i + length] for i in range(0, len(tokens) - length + 1, length)]
    reference = bench.work / "reference.npy"
    job = {"windows": windows, "reference": str(reference)}
    bench.call("eager", "reference", model=str(bench.models / contestants.BASE_FOLDER), **job)
    for who in everyone:
        if "divergence" in who.tasks:
            bench.measure(who, "divergence", **job)
    reference.unlink()


def gather(bench: Bench) -> Iterator[Contestant]:
    """Ours, compiled if need be, then the peers that are there."""
    args = bench.args
    base = bench.models / contestants.BASE_GGUF
    for name in args.ours:
        how = contestants.OURS[name]
        folder = bench.work / f"{args.target}-{name.replace(' ', '-')}"
        job = {"target": args.target, "precision": how.precision, "overrides": how.overrides}
        job |= {"prompt_len": args.long_prompt, "num_sequences": args.sequences}
        try:
            bench.call("container", "compile", source=str(base), out=str(folder), **job)
        except WorkerError as error:
            bench.note_failure(f"qeff {name}", "compile", error)
            continue
        yield contestants.open_ours(f"qeff {name}", folder, how.bits, how.tasks)
    if args.big_container:
        yield contestants.open_ours(BIG, args.big_container.resolve(), 4, ("single",))
    for name in args.peers:
        peer = contestants.open_peer(name, bench.models)
        if peer is None:
            raise SystemExit(f"no model of {name} in {bench.models}")
        yield peer
        if peer.engine == "llamacpp" and args.big_gguf and name == "llama.cpp Q4_0":
            path = args.big_gguf.resolve()
            size = contestants.weights_bytes(path)
            big = replace(peer, name=BIG_PEER, model=str(path), weights_bytes=size)
            yield replace(big, tasks=("single",))
    if args.divergence:
        path = bench.work / "q4_k_m.gguf"
        if not path.exists() or path.stat().st_mtime < base.stat().st_mtime:
            bench.call("llamacpp", "quantise", source=str(base), out=str(path), kind="Q4_K_M")
        size = contestants.weights_bytes(path)
        yield Contestant(KL_AIM, "llamacpp", str(path), 4, False, ("divergence",), size)


def describe(bench: Bench, everyone: list[Contestant], int8_instruction: str) -> None:
    """The first row: machine, versions, date, and who takes part with how many bytes."""
    from qeff.apps import machine

    versions: dict[str, str] = {}
    engines = {who.engine for who in everyone} | ({"eager"} if bench.args.divergence else set())
    for engine in sorted(engines):
        versions |= bench.call(engine, "versions")
    compiler = subprocess.run(["cc", "--version"], capture_output=True, text=True, check=True)
    bench.write(
        kind="run",
        date=datetime.date.today().isoformat(),
        machine=machine.processor()
        | {
            "name": processor_name() or machine.processor()["name"],
            "memory_bytes": machine.memory_bytes(),
            "system": f"{platform.system()} {platform.release()}",
        },
        model=bench.args.model,
        threads=bench.args.threads,
        rounds=bench.args.rounds,
        long_prompt=bench.args.long_prompt,
        num_sequences=bench.args.sequences,
        versions=versions,
        compiler=compiler.stdout.splitlines()[0],
        int8_instruction=int8_instruction,
        contestants=[asdict(who) for who in everyone],
    )


def processor_name() -> str | None:
    """The model's name, which the kernel's table lacks on Arm."""
    done = subprocess.run(["lscpu"], capture_output=True, text=True, check=False)
    pairs = (line.partition(":") for line in done.stdout.splitlines())
    return next((value.strip() for key, _, value in pairs if key.strip() == "Model name"), None)


def read_tokens(models: Path) -> list[int]:
    """The text beside this script in the model's tokens."""
    from tokenizers import Tokenizer

    path = models / contestants.BASE_FOLDER / "tokenizer.json"
    text = (HERE / "text.txt").read_text()
    return Tokenizer.from_file(str(path)).encode(text, add_special_tokens=False).ids


def parse_arguments() -> argparse.Namespace:
    """Options; their checks among each other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--peers-python", metavar="PYTHON", help="interpreter that has the peers installed")
    add("--peers-models", type=Path, metavar="MODELS", help="folder of the peers' models")
    add("--work", type=Path, metavar="FOLDER", help="for containers and measurements")
    add("--report", type=Path, metavar="FILE", help="print the table of measurements.jsonl")
    add("--model", default="SmolLM2-135M", help="the checkpoint's name in the heading")
    add("--target", default="cpu", help="what our containers are compiled for")
    add("--ours", type=words, default=list(contestants.OURS), help="of " + str([*contestants.OURS]))
    add(
        "--peers",
        type=words,
        default=list(contestants.PEERS),
        help="of " + str([*contestants.PEERS]),
    )
    add("--big-container", type=Path, help="4-bit container of a 1B shape")
    add("--big-gguf", type=Path, help="the same shape in Q4_0, for llama.cpp")
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=5)
    add("--repeats", type=int, default=2, help="timed runs in one process")
    add("--new-tokens", type=int, default=128)
    add("--long-prompt", type=int, default=512)
    add("--sequences", type=int, default=8, help="how many are decoded together")
    add("--ctx-len", type=int, default=768)
    add("--window", type=int, default=512, help="context in tokens of the comparison of logits")
    add("--no-divergence", dest="divergence", action="store_false", help="compare no logits")
    add("--quiet-share", type=float, default=0.1, help="others may take this part of the cores")
    add("--quiet-wait", type=float, default=60, metavar="SECONDS", help="wait at most so long")
    add("--max-others", type=float, default=0.1, help="runs more disturbed than this do not count")
    add("--timeout", type=float, default=600, metavar="SECONDS", help="for one measurement")
    args = parser.parse_args()
    if args.report is None and not (args.peers_python and args.peers_models and args.work):
        parser.error("--peers-python, --peers-models and --work are needed to measure")
    for option, known in (("ours", contestants.OURS), ("peers", contestants.PEERS)):
        if unknown := set(getattr(args, option)) - set(known):
            parser.error(f"--{option}: {sorted(unknown)} are not of {sorted(known)}")
    return args


def words(text: str) -> list[str]:
    """Names between commas."""
    return [word.strip() for word in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
