"""Random load on one engine after another, for as long as is wanted: nothing may leak or go wrong.

    python benchmarks/soak.py CONTAINER [--draft CONTAINER] [--seconds 600]

Clients ask for requests of a pool whose answers were computed alone beforehand. Some read slowly,
some leave or cancel, many prompts begin alike, and there are too few cache blocks for all. Rounds
take turns with no speculation, prompt lookup, lookahead and a draft model, each with as many blocks
as its first round had. Every stream must be what its request gives alone, every block must come
back, and memory must stay as it is from one round of a kind to the next. Prints a report; the exit
code is 1 where something failed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from qeff.container import Container
from qeff.generate import AsyncEngine, Engine, Request, Result, SamplingParams, SpeculationConfig
from qeff.generate.drafting import Drafting
from qeff.runtime import Session, open_session
from qeff.runtime.session import CHOICE, GREEDY, Batch, Span

KINDS = (None, "prompt_lookup", "lookahead", "draft")
NUM_CYCLES = 10  # each kind comes this often
WARM_UP = 0.4  # of the time; memory is looked at after it


@dataclass(frozen=True)
class Known:
    """A request of the pool and what each of its outputs is, alone."""

    request: Request
    outputs: dict[int, tuple[int, ...]]


@dataclass
class Findings:
    """What happened."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    memory: list[tuple[str | None, float, float]] = field(default_factory=list)  # kind, s, MB

    def fail(self, what: str) -> None:
        """Note a failure; the first ones are told."""
        self.counts["failures"] += 1
        if len(self.failures) < 10:
            self.failures.append(what)

    def growth_mb(self) -> float:
        """What the memory rises by while it is looked at: one slope, and a level for each kind."""
        first, last = self.memory[0][1], self.memory[-1][1]
        start = first + WARM_UP * (last - first)
        product = spread = 0.0
        for kind in KINDS:
            points = [(x, y) for which, x, y in self.memory if which == kind and x >= start]
            mean_x = sum(x for x, _ in points) / max(1, len(points))
            product += sum((x - mean_x) * y for x, y in points)
            spread += sum((x - mean_x) ** 2 for x, _ in points)
        return product / spread * (last - start) if spread else 0.0

    def peaks_mb(self) -> list[float]:
        """The most memory in each tenth of the time."""
        first, last = self.memory[0][1], self.memory[-1][1]
        tenths = [0.0] * 10
        for _, x, y in self.memory:
            place = min(9, int(10 * (x - first) / max(1e-9, last - first)))
            tenths[place] = max(tenths[place], y)
        return tenths


class Soak:
    """The sessions, the pool, and the load."""

    def __init__(self, session: Session, draft: Session, args: argparse.Namespace) -> None:
        self.session, self.draft, self.args = Shared(session), Shared(draft), args
        self.draws = random.Random(args.seed)
        self.found = Findings()
        self.numbers = itertools.count()
        self.pool = [self._know(request) for request in self._requests()]
        one = -(-session.caps.ctx_len // session.caps.block_len)
        self.num_blocks = {kind: one + self.draws.randrange(1, max(2, one)) for kind in KINDS}

    def run(self) -> Findings:
        """Rounds until the time is over."""
        end = time.monotonic() + self.args.seconds
        length = max(1.0, self.args.seconds / (NUM_CYCLES * len(KINDS)))
        for kind in itertools.cycle(KINDS):
            if time.monotonic() >= end:
                return self.found
            asyncio.run(self._round(kind, min(end, time.monotonic() + length)))
        raise AssertionError("a cycle has no end")

    def _requests(self) -> list[Request]:
        """Prompts of which many begin alike, and all ways to choose tokens."""
        caps, draws = self.session.caps, self.draws
        longest = caps.ctx_len // 2
        stems = [
            [draws.randrange(3, caps.vocab_size) for _ in range(longest)] * 2 for _ in range(3)
        ]
        found = []
        for index in range(self.args.pool):
            prompt = stems[index % 3][: draws.randrange(1, longest)]
            prompt += [draws.randrange(3, 12) for _ in range(draws.randrange(8))]
            ways = (
                {},
                {"temperature": 0.8, "top_p": 0.9},
                {"repetition_penalty": 1.2, "logprobs": 1},
                {"temperature": 0.7, "n": 2},
                {"beam_width": 3},
            )
            most = draws.randrange(1, min(self.args.longest, caps.ctx_len - len(prompt)) + 1)
            params = SamplingParams(max_tokens=most, seed=index, **ways[index % 5])
            salt = "" if index % 4 else "tenant"
            priority = draws.choice((0, 0, 1))
            found.append(Request(tuple(prompt), params, cache_salt=salt, priority=priority))
        return found

    def _know(self, request: Request) -> Known:
        """What a request gives in an engine of its own that reuses and guesses nothing."""
        with Engine(self.session, reuse_prefixes=False) as engine:
            result = engine.generate([request])[0]
        outputs = [result, *(() if request.params.beam_width else result.alternatives)]
        return Known(request, {output.index: output.token_ids for output in outputs})

    async def _round(self, kind: str | None, end: float) -> None:
        engine = self._engine(kind)
        num_blocks = engine.stats.num_free_blocks
        async with AsyncEngine(engine) as served:
            clients = [self._client(served, end) for _ in range(self.args.clients)]
            await asyncio.gather(self._watch(kind, end), *clients)
            stats = await served.stats()
            for _ in range(200):  # what was left behind is cancelled between steps
                if not stats.num_running + stats.num_waiting:
                    break
                await asyncio.sleep(0.01)
                stats = await served.stats()
        if stats.num_free_blocks != num_blocks:
            self.found.fail(f"{num_blocks - stats.num_free_blocks} blocks leaked with {kind}")
        counts = self.found.counts
        counts["rounds"] += 1
        counts["steps"] += stats.num_steps
        counts["tokens run"] += stats.num_step_tokens
        counts["tokens reused"] += stats.num_reused_tokens
        counts["preemptions"] += stats.num_preemptions
        if stats.speculation is not None:
            counts["tokens drafted"] += stats.speculation.num_drafted
            counts["tokens accepted"] += stats.speculation.num_accepted

    def _engine(self, kind: str | None) -> Engine:
        caps = self.session.caps
        drafting = None
        if kind is not None and (kind != "lookahead" or caps.supports_trees):
            config = SpeculationConfig(kind=kind, is_adaptive=self.draws.random() < 0.5)
            draft = self.draft if kind == "draft" else None
            drafting = Drafting.start(config, caps, draft=draft)
        return Engine(self.session, num_blocks=self.num_blocks[kind], drafting=drafting)

    async def _watch(self, kind: str | None, end: float) -> None:
        while time.monotonic() < end:
            self.found.memory.append((kind, time.monotonic(), memory_mb()))
            await asyncio.sleep(min(1.0, self.args.seconds / 50))

    async def _client(self, engine: AsyncEngine, end: float) -> None:
        while time.monotonic() < end:
            known = self.draws.choice(self.pool)
            request = replace(known.request, id=f"request {next(self.numbers)}")
            self.found.counts["requests"] += 1
            await self._follow(engine, known, request)
            if self.draws.random() < 0.2:
                await asyncio.sleep(self.draws.random() * 0.05)

    async def _follow(self, engine: AsyncEngine, known: Known, request: Request) -> None:
        """Read one request to its end, or to where patience ends, and judge what came."""
        mood = self.draws.choice(("quick", "quick", "slow", "leaves", "cancels"))
        patience = self.draws.randrange(self.args.longest)
        told: dict[int, list[int]] = {index: [] for index in known.outputs}
        results: dict[int, Result] = {}
        num_told = 0
        stream = engine.stream(request)
        async for delta in stream:
            if delta.index not in told or delta.index in results:
                self.found.fail(f"{request.id}: a piece of output {delta.index} too many")
                break
            told[delta.index].extend(delta.token_ids)
            if delta.result is not None:
                results[delta.index] = delta.result
            num_told += len(delta.token_ids)
            if mood == "slow":
                await asyncio.sleep(self.draws.random() * self.args.pause)
            elif mood == "leaves" and num_told > patience:
                break
            elif mood == "cancels" and num_told > patience:
                mood = "cancelled"
                await engine.cancel(request.id)
        await stream.aclose()
        self._judge(known, mood, told, results)

    def _judge(
        self, known: Known, mood: str, told: dict[int, list[int]], results: dict[int, Result]
    ) -> None:
        counts = self.found.counts
        for index, tokens in told.items():
            expected, result = known.outputs[index], results.get(index)
            counts["tokens told"] += len(tokens)
            if result is not None and tuple(tokens) != result.token_ids:
                self.found.fail(f"output {index}: its stream and its result differ")
            is_cut = result is None or result.finish == "cancelled"
            counts["cut"] += is_cut
            if mood == "cancelled" and known.request.params.beam_width:
                continue  # the best beam of a moment need not begin the best of the end
            if is_cut and mood not in ("leaves", "cancelled"):
                self.found.fail(f"output {index}: ended without being asked to ({mood})")
            if tuple(tokens) != expected[: len(tokens)] or (
                not is_cut and len(tokens) < len(expected)
            ):
                self.found.fail(
                    f"output {index} of {known.request.params}: other tokens than alone"
                )


class Shared:
    """A session that stays open when an engine is done with it, so that memory can be watched.

    All that it may ever take is taken at once: the memory of the largest step, and every page of
    the cache. What memory grows by is then not what load happened to touch, but a leak.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        count, block_len = session.caps.max_step_tokens, session.caps.block_len
        self.reserve(-(-count // block_len))
        span = Span(0, count, tuple(range(-(-count // block_len))))
        places = np.arange(count)
        choices = np.array([GREEDY] * count, CHOICE) if session.caps.chooses else None
        session.step(Batch(np.zeros(count, np.int64), places, (span,), places, choices=choices))

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def reserve(self, num_blocks: int) -> None:
        """Make room for so many blocks, and write to all of them."""
        self._session.reserve(num_blocks)
        self._session.copy_blocks([(block - 1, block) for block in range(1, num_blocks)])

    def close(self) -> None:
        """Does nothing: the next engine goes on with it."""


def memory_mb() -> float:
    """What this process has in memory of its own: pages of mapped files come and go."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x)
    return int(line.split()[1]) / 1024


def report(found: Findings, args: argparse.Namespace) -> tuple[str, bool]:
    """The report, and whether all is well."""
    growth, peaks = found.growth_mb(), found.peaks_mb()
    if growth > args.max_growth:
        found.fail(f"memory grew by {growth:.1f} MB")
    lines = [f"{args.seconds:.0f} seconds, {args.clients} clients, seed {args.seed}\n"]
    lines += ["| what | how much |", "|---|---|"]
    lines += [f"| {name} | {count} |" for name, count in found.counts.items()]
    lines.append(
        f"| memory in each tenth of the time, MB | {', '.join(f'{x:.0f}' for x in peaks)} |"
    )
    lines.append(f"| its growth by a fitted line, after warming up | {growth:+.2f} MB |")
    lines += ["", *(f"FAILED: {what}" for what in found.failures)]
    if not found.failures:
        lines.append("No block leaked, no token lost, doubled or other than alone, memory flat.")
    return "\n".join(lines), not found.failures


def main(words: list[str] | None = None) -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("container", type=Path)
    add("--draft", type=Path, help="container of the draft model; the same one by default")
    add("--seconds", type=float, default=600)
    add("--clients", type=int, default=12)
    add("--pool", type=int, default=40, help="different requests")
    add("--longest", type=int, default=48, help="most tokens of an output")
    add("--pause", type=float, default=0.05, help="most seconds a slow reader takes for a piece")
    add("--max-growth", type=float, default=8, help="MB that memory may grow by")
    add("--threads", type=int, default=None)
    add("--seed", type=int, default=0)
    args = parser.parse_args(words)
    session = open_session(Container.open(args.container), threads=args.threads)
    draft = open_session(Container.open(args.draft or args.container), threads=args.threads)
    text, is_well = report(Soak(session, draft, args).run(), args)
    session.close()
    draft.close()
    print(text)
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
