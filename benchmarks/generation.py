"""The generation engine's numbers: throughput beside peers, overhead, prefixes, speculation.

    python benchmarks/generation.py --work FOLDER --peers-python P/bin/python --peers-models MODELS
        [--target-model GGUF --draft-model GGUF] [--parts throughput,overhead,...] [--report FILE]

MODELS is laid out as for ``benchmarks/cpu.py``. Containers are compiled into FOLDER: ours of
``gguf/f16.gguf`` and of the default model, target and draft of the checkpoints that are named.
Throughput: every measurement has a process of its own and rounds are interleaved. Each part prints
a table with its bar; ``--report`` also writes them to a file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from contest import contestants
from contest.contestants import Contestant
from contest.figures import Measurements
from contest.quiet import wait_until_quiet
from contest.serving import make_load
from cpu import MEASUREMENTS, Bench, describe, read_tokens
from generating import guesses, overhead, prefixes, prompts

from qeff.container import Container
from qeff.generate import SpeculationConfig, Text
from qeff.runtime import Session, open_session

BARS = {
    "throughput": 1.5,
    "overhead_us": 150.0,
    "prefix": 1.3,
    "prompt_lookup": 1.5,
    "lookahead": 0.97,
    "draft": 1.2,
}
PEERS = {
    "llama.cpp Q4_0": ("llamacpp", "gguf/q4_0.gguf"),
    "llama.cpp Q4_0, one cache": ("llamacpp_unified", "gguf/q4_0.gguf"),
    "llama.cpp Q4_0 pure": ("llamacpp", "gguf/q4_0-pure.gguf"),
    "llama.cpp Q4_0 pure, one cache": ("llamacpp_unified", "gguf/q4_0-pure.gguf"),
    "onnxruntime-genai int4": ("ort_genai", "ort-int4"),
}
TASKS = ("serving",)
DEFAULT = contestants.Precision("auto", 4, TASKS)  # the built-in model as it is, in Q4_1


def throughput(bench: Bench) -> str:
    """Requests of mixed length at once, ours and the peers' in turns."""
    args = bench.args
    tokens = read_tokens(bench.models)
    load = make_load(tokens, args.requests, args.prompt_len, args.new_tokens)
    everyone = list(gather(bench))
    describe(bench, everyone, "-")
    for round_idx in range(args.rounds):
        turn = round_idx % len(everyone)  # nobody is always the first
        for who in everyone[turn:] + everyone[:turn]:
            bench.measure(who, "serving", load=load, repeats=args.repeats)
    rows = [json.loads(line) for line in (bench.work / MEASUREMENTS).read_text().splitlines()]
    return serving_table(Measurements(rows, args.max_others), load)


def gather(bench: Bench) -> Iterator[Contestant]:
    """Ours, compiled with room for all requests, then the peers that are there."""
    args = bench.args
    for name in args.ours:
        how = contestants.OURS.get(name, DEFAULT)
        folder = bench.work / f"serving-{name.replace(' ', '-')}"
        job = {"target": "cpu", "precision": how.precision, "overrides": how.overrides}
        job |= {"prompt_len": args.prompt_len, "num_sequences": args.requests}
        source = None if how is DEFAULT else str(bench.models / contestants.BASE_GGUF)
        bench.call("container", "compile", source=source, out=str(folder), **job)
        yield contestants.open_ours(f"qeff {name}", folder, how.bits, TASKS)
    for name in args.peers:
        engine, path = PEERS[name]
        whole = bench.models / path
        size = contestants.weights_bytes(whole)
        yield Contestant(name, engine, str(whole), 4, False, TASKS, size)


def serving_table(found: Measurements, load: list[tuple[list[int], int]]) -> str:
    """All contestants, then the bar."""
    num_new, num_prompt = sum(new for _, new in load), sum(len(prompt) for prompt, _ in load)
    keys = ("serve_tok_s", "serve_all_tok_s", "gap_p50_s", "gap_p95_s", "ttft_p50_s", "ttft_p95_s")
    body = []
    for name in found.contestants:
        values = [found.median(name, key) for key in keys]
        cells = ["-" if v is None else f"{v:.1f}" for v in values[:2]]
        cells += ["-" if v is None else f"{1e3 * v:.1f}" for v in values[2:]]
        calm, whole = found.calm(name)
        body.append((name, *cells, f"{calm}/{whole}"))
    head = (
        "contestant", "new tok/s", "all tok/s", "gap p50 ms", "gap p95 ms", "first p50 ms",
        "first p95 ms", "calm runs",
    )  # fmt: skip
    ours = [name for name, row in found.contestants.items() if row["is_ours"]]
    lines = [
        f"{len(load)} requests, {num_prompt} prompt tokens and {num_new} new ones in all;"
        f" {found.run['threads']} threads; medians of {found.run['rounds']} interleaved rounds.\n",
        table(head, body),
        "",
    ]
    peers = found.peers(4, "serve_tok_s")
    for name in ours:
        speed, gap = found.median(name, "serve_tok_s"), found.median(name, "gap_p95_s")
        if speed and gap and peers:
            best, rival = peers[-1]
            theirs = found.median(rival, "gap_p95_s") or 0.0
            lines.append(
                f"{name}: {verdict(speed / best, BARS['throughput'])} of {rival};"
                f" p95 gap {1e3 * gap:.1f} ms against {1e3 * theirs:.1f} ms:"
                f" {'not worse' if gap <= theirs else 'WORSE'}."
            )
    lines += [f"No {x['task']} of {x['contestant']}: {x['why']}" for x in found.failures]
    return "\n".join(lines)


def scheduling(args: argparse.Namespace) -> str:
    """Engine time outside a session that costs nothing."""
    rows = []
    for vocab_size, kind in ((64, "none"), (49152, "none"), (64, "prompt_lookup")):
        quiet(args)
        found = overhead.measure(args.requests, vocab_size, args.steps, kind)
        bar = BARS["overhead_us"] if (vocab_size, kind) == (64, "none") else None
        state = "-" if bar is None else "reached" if found.mean_us <= bar else "MISSED"
        times = (found.mean_us, found.median_us, found.p95_us)
        rows.append((str(vocab_size), kind, *(f"{value:.0f}" for value in times), state))
    head = (
        "vocabulary",
        "speculation",
        "mean µs",
        "p50 µs",
        "p95 µs",
        f"bar {BARS['overhead_us']:g} µs",
    )
    return "\n\n".join(
        (
            f"Decode steps of {args.requests} requests, {args.steps} steps.",
            table(head, rows),
            "Where the time goes (vocabulary of 64; the profiler makes everything slower):",
            overhead.profile(args.requests, 64, args.steps),
        )
    )


def shared_prefixes(args: argparse.Namespace) -> str:
    """One prefill of what many requests share, and what the later ones wait."""
    container, session = open_container(args)
    tokens = Text.from_container(container).encode(prompts.TEXT.read_text())
    quiet(args)
    found = prefixes.measure(session, tokens, args.sharing, args.shared_len, args.suffix_len)
    session.close()
    expected = found.num_shared + found.num_requests * found.num_suffix
    rows = [
        ("prompt tokens run, all at once", str(found.num_run_together), str(expected)),
        ("prompt tokens run, one after another", str(found.num_run_in_turn), str(expected)),
        ("first token of a later one", f"{1e3 * found.shared_ttft_s:.1f} ms", "-"),
        ("first token of the suffix alone", f"{1e3 * found.suffix_ttft_s:.1f} ms", "-"),
        ("first token with nothing reused", f"{1e3 * found.whole_ttft_s:.1f} ms", "-"),
    ]
    state = "reached" if found.ratio <= BARS["prefix"] else "MISSED"
    return "\n\n".join(
        (
            f"{found.num_requests} requests share {found.num_shared} tokens; {found.num_suffix}"
            " more of their own each.",
            table(("what", "found", "with one prefill"), rows),
            f"{found.ratio:.2f} × the suffix alone, bar {BARS['prefix']:g} ×: {state}.",
        )
    )


def speculation(args: argparse.Namespace) -> str:
    """Prompt lookup on edits, lookahead on a mixed set."""
    container, session = open_container(args)
    text = Text.from_container(container)
    parts = []
    for kind, texts in (("prompt_lookup", prompts.edits()), ("lookahead", prompts.mixed())):
        config = SpeculationConfig(kind=kind)  # type: ignore[arg-type]
        parts.append(guess_table(args, session, text, guesses.Kind(config), texts))
    session.close()
    return "\n\n".join(parts)


def draft_model(args: argparse.Namespace) -> str:
    """A draft model before its target, on code."""
    pair = (
        (args.target_model, args.target_precision),
        (args.draft_model, args.draft_precision),
    )
    opened = [Container.open(compiled(args, ref, precision)) for ref, precision in pair]
    sessions = [open_session(each, threads=args.threads) for each in opened]
    texts = [Text.from_container(each) for each in opened]
    numbers = (texts[0].vocab_size, texts[1].vocab_size)
    draft = StaysOpen(sessions[1])
    kind = guesses.Kind(SpeculationConfig(kind="draft"), draft, numbers)  # type: ignore[arg-type]
    found = guess_table(args, sessions[0], texts[0], kind, prompts.code())
    for session in sessions:
        session.close()
    return found


def guess_table(
    args: argparse.Namespace,
    session: Session,
    text: Text,
    kind: guesses.Kind,
    texts: dict[str, str],
) -> str:
    """Every prompt plain and guessed, and all together against the bar."""
    found = []
    for name, words in list(texts.items())[: args.most_prompts]:
        tokens = text.encode_chat([{"role": "user", "content": words}])
        most = min(args.new_tokens, session.caps.ctx_len - len(tokens))
        quiet(args)
        found.append(guesses.measure(session, kind, name, tokens, most, args.repeats))
    rows = [
        (
            each.name,
            f"{each.plain_tok_s:.1f}",
            f"{each.guessed_tok_s:.1f}",
            f"{each.ratio:.2f} ×",
            f"{each.acceptance:.0%}",
            f"{each.others:.0%}",
        )
        for each in found
    ]
    head = ("prompt", "plain tok/s", "guessed tok/s", "ratio", "accepted", "others' share")
    name = kind.config.kind
    ratio = guesses.overall(found)
    return f"{name}:\n\n{table(head, rows)}\n\n{name}: {verdict(ratio, BARS[name])} of plain."


class StaysOpen:
    """A session that engines do not close, since several use it in turn."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def close(self) -> None:
        """Does nothing."""


def open_container(args: argparse.Namespace) -> tuple[Container, Session]:
    """The container of the parts that have no peers."""
    container = Container.open(compiled(args, args.container))
    return container, open_session(container, threads=args.threads)


def compiled(args: argparse.Namespace, ref: Path | None, precision: str = "auto") -> Path:
    """A container as it is; a checkpoint, or the default model, compiled into the work folder."""
    from qeff.apps.pipeline import build
    from qeff.core.options import CompileOptions, ExportOptions

    if ref is not None and (ref / "manifest.json").is_file():
        return ref
    out = args.work / f"container-{ref.stem if ref else 'default'}-{precision}"
    options = CompileOptions(
        precision=precision,
        ctx_len=args.ctx_len,
        prefill_seq_len=args.prompt_len,
        full_batch_size=args.sharing,
    )
    return build(ref, ExportOptions(continuous_batching=True), options, out=out.resolve())


def quiet(args: argparse.Namespace) -> None:
    """Wait until nobody else works."""
    if not wait_until_quiet(args.quiet_share, args.quiet_wait):
        print("others are at work: measured all the same", file=sys.stderr)


def verdict(ratio: float, bar: float) -> str:
    """A ratio that should be at least the bar."""
    return f"{ratio:.2f} × (bar {bar:g} ×: {'reached' if ratio >= bar else 'MISSED'})"


def table(head: tuple[str, ...], body: list[tuple[str, ...]]) -> str:
    """Rows as Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *body)]
    return "\n".join((lines[0], "|" + "---|" * len(head), *lines[1:]))


PARTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "throughput": lambda args: throughput(Bench(args)),
    "overhead": scheduling,
    "prefix": shared_prefixes,
    "speculation": speculation,
    "draft": draft_model,
}


def main() -> int:
    """Measure the parts that were asked for, and print them."""
    args = parse_arguments()
    text = ""
    for name in args.parts:
        text += f"## {name}\n\n{PARTS[name](args)}\n\n"
        if args.report:
            args.report.write_text(text)
    print(text)
    return 0


def parse_arguments() -> argparse.Namespace:
    """Options; their checks among each other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--work", type=Path, required=True, metavar="FOLDER")
    add("--parts", type=words, default=list(PARTS), help="of " + ", ".join(PARTS))
    add("--report", type=Path, metavar="FILE", help="write the tables there, too")
    add("--peers-python", metavar="PYTHON", help="interpreter that has the peers installed")
    add("--peers-models", type=Path, metavar="MODELS", help="folder of the peers' models")
    add("--ours", type=words, default=["default", "int4", "int4 all"])
    add("--peers", type=words, default=list(PEERS), help="of " + ", ".join(PEERS))
    add("--model", default="SmolLM2-135M", help="the checkpoint's name in the heading")
    add("--container", type=Path, help="for prefixes and guesses; the default model otherwise")
    add("--target-model", type=Path, help="container or checkpoint of the draft's target")
    add("--draft-model", type=Path, help="container or checkpoint of the draft")
    add("--target-precision", default="auto", help="of a checkpoint; auto: as it is")
    add("--draft-precision", default="auto")
    add("--threads", type=int, default=2)
    add("--ctx-len", type=int, default=1024)
    add("--requests", type=int, default=32)
    add("--prompt-len", type=int, default=256, help="longest prompt of the load")
    add("--new-tokens", type=int, default=128, help="longest answer")
    add("--rounds", type=int, default=5)
    add("--repeats", type=int, default=3)
    add("--steps", type=int, default=1000, help="for the overhead")
    add("--sharing", type=int, default=16, help="requests that share a beginning")
    add("--shared-len", type=int, default=400)
    add("--suffix-len", type=int, default=32)
    add("--most-prompts", type=int, default=99, help="of each set, for a quick look")
    add("--timeout", type=float, default=1200)
    add("--max-others", type=float, default=0.05)
    add("--quiet-share", type=float, default=0.05)
    add("--quiet-wait", type=float, default=60)
    args = parser.parse_args()
    args.long_prompt, args.sequences, args.divergence = args.prompt_len, args.requests, False
    args.work.mkdir(parents=True, exist_ok=True)
    if "throughput" in args.parts and not (args.peers_python and args.peers_models):
        parser.error("throughput needs --peers-python and --peers-models")
    if "draft" in args.parts and not (args.target_model and args.draft_model):
        parser.error("draft needs --target-model and --draft-model")
    return args


def words(text: str) -> list[str]:
    """A list with semicolons, since names hold commas, or with commas where there is none."""
    return [word.strip() for word in text.split(";" if ";" in text else ",") if word.strip()]


if __name__ == "__main__":
    sys.exit(main())
