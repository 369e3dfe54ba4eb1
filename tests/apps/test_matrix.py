"""Every pair of features together on a tiny model: each request gives what the plainest run gives.

A row of the covering array is compiled, and four requests that begin alike run through one engine
as the row says; each runs alone on the same container, too: whole prompts, nothing reused, nothing
guessed. On ``cpu`` the two are equal bit for bit, and so they are on ``cuda``, opened as
deterministic; on ``reference``, whose sums are numpy's, in all tokens. ONNX Runtime's sums depend
more on the shape of a call: there only greedy tokens are compared, as long as the likeliest one
leads clearly, for which its rows run greedily once more. What else an output must be is checked on
all. Rows of ``cuda`` need a GPU.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from matrix import EVERYWHERE, FACTORS, NEEDS_GPU, ROWS, is_possible, pairs_of, possible_pairs

from qeff.apps.pipeline import build
from qeff.container import Container
from qeff.core.options import CompileOptions, ExportOptions
from qeff.generate import Constraint, Engine, FinishReason, Request, Result, SamplingParams, Text
from qeff.generate.drafting import Drafting
from qeff.generate.speculation import SpeculationConfig
from qeff.runtime import open_session
from qeff.sources import locate
from qeff.sources.speculator import with_heads, write_heads

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.xdist_group("matrix")  # containers are made once

CTX_LEN = 128
NUM_NEW = 10
# By how much log-probability the likeliest token must lead, by the cache's precision: with halves
# ONNX Runtime computes one token and several in different kernels, and a random model amplifies it.
CLEAR = {"auto": 0.02, "fp32": 0.02, "fp16": 1.0}
SHARED = 2 * "once upon a time in the flat earth theory my name is the sun rises from the earth "
ENDINGS = ("once upon a", "once upon a time in", "my name is", "the sun")
BATCHING = {
    "one": {"batch_size": 1},
    "plain": {"batch_size": 3},
    "continuous": {"full_batch_size": 3, "kv_cache_batch_size": 4},
}
PATTERN = "[a-f]{4,9}(sun|earth)"
WORDS = ("the sun", "my name", "flat earth")
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "of": {"enum": ["sun", "earth"]}},
    "required": ["ok", "of"],
    "additionalProperties": False,
}
CONSTRAINTS = {
    "none": None,
    "json": Constraint.json_schema(SCHEMA),
    "regex": Constraint.regex(PATTERN),
    "choice": Constraint.choice(WORDS),
}
SAMPLING = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "logprobs": 1},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "temperature": 0.7},
    "n=2": {"temperature": 0.9, "n": 2},
    "beam": {"beam_width": 3, "n": 2},
}


class Limited:
    """A session that takes at most ``chunk`` tokens of a sequence in a step."""

    def __init__(self, session, chunk: str) -> None:
        self._session = session
        most = session.caps.max_step_tokens
        limit = most if chunk == "whole" else min(int(chunk), most)
        self.caps = replace(session.caps, max_step_tokens=limit)

    def __getattr__(self, name):
        return getattr(self._session, name)


@dataclass
class Bench:
    """The tiny model, the same one with heads, and what is made of them."""

    tiny: Path
    headed: Path

    def container(self, row: dict[str, str]) -> Container:
        options = CompileOptions(
            target=row["target"],
            precision=row["precision"],
            kv_precision=row["kv"],
            ctx_len=CTX_LEN,
            prefill_seq_len=16,
            **BATCHING[row["batching"]],
        )
        graph = ExportOptions(continuous_batching=row["batching"] == "continuous")
        has_heads = row["speculation"] == "heads"
        location = with_heads(locate(self.headed)) if has_heads else locate(self.tiny)
        return Container.open(build(location, graph, options))

    def draft(self, target: str):
        """A session of a draft model, beside a row of a target: on the same GPU, or on the CPU."""
        row = {"precision": "fp32", "kv": "fp32", "batching": "one", "speculation": "none"}
        chosen = target if target in NEEDS_GPU else "cpu"
        return open_session(self.container(row | {"target": chosen}), threads=1)

    def engine(self, row: dict[str, str], container: Container) -> Engine:
        opened = open_session(container, threads=1, deterministic=row["target"] == "cuda")
        session = Limited(opened, row["chunk"])
        drafting = None
        if row["speculation"] != "none":
            config = SpeculationConfig(
                kind=row["speculation"], is_adaptive=False, min_ngram=1, min_confidence=0.0
            )
            draft = None
            if config.kind == "draft":
                draft = self.draft(row["target"])
            drafting = Drafting.start(config, session.caps, draft=draft)
        # A little more than one context: where blocks are small, sequences push one another out.
        is_tight = row["batching"] == "continuous" and session.caps.block_len < CTX_LEN
        return Engine(
            session,
            Text.from_container(container),
            num_blocks=CTX_LEN // session.caps.block_len + 3 if is_tight else None,
            reuse_prefixes=row["reuse"] == "on",
            drafting=drafting,
        )


@pytest.fixture(scope="module")
def headed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with heads whose guesses mean nothing."""
    folder = tmp_path_factory.mktemp("headed") / "tiny-turbo"
    shutil.copytree(tiny, folder)
    draws = np.random.default_rng(7)
    numbers = {"num_heads": 2, "num_layers": 1}
    write_heads(folder, numbers, 64, lambda shape: 0.05 * draws.standard_normal(shape))
    return folder


@pytest.fixture(scope="module")
def bench(tiny: Path, headed: Path, shared_cache: Path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QEFF_HOME", str(shared_cache))
        yield Bench(tiny, headed)


def requests_of(row: dict[str, str], text: Text, stops: dict[str, tuple[str, ...]]):
    constraint = CONSTRAINTS[row["constraint"]]
    # ONNX Runtime's lead is measured over all tokens.
    more = {"logprobs": text.vocab_size} if is_measured(row) else {}
    for index, ending in enumerate(ENDINGS):
        params = SamplingParams(
            max_tokens=22 if row["constraint"] == "json" else NUM_NEW,
            seed=index + 1,
            stop=stops.get(f"r{index}", ()),
            **SAMPLING[row["sampling"]] | more,
        )
        prompt = tuple(text.encode(SHARED + ending))
        yield Request(prompt, params, id=f"r{index}", constraint=constraint)


def is_measured(row: dict[str, str]) -> bool:
    return row["target"] == "ort" and row["sampling"] == "greedy"


def run(engine: Engine, row: dict[str, str], requests: list[Request]):
    """All requests, two at first and then one in every second step; streams and results."""
    told: dict[tuple[str, int], list[int]] = {}
    results: dict[tuple[str, int], Result] = {}
    victim = {"queued": "r3", "decoding": "r1"}.get(row["cancel"])

    def hear(deltas) -> None:
        for delta in deltas:
            key = delta.request_id, delta.index
            assert key not in results, "more after the end"
            told.setdefault(key, []).extend(delta.token_ids)
            if delta.result is not None:
                results[key] = delta.result

    waiting, num_steps = list(requests), 0
    while waiting or engine.has_work:
        if waiting and (num_steps % 2 == 0 or len(waiting) > len(requests) - 2):
            request = waiting.pop(0)
            engine.add(request)
            if row["cancel"] == "queued" and request.id == victim:
                hear(engine.end(victim))
        if (row["cancel"] == "decoding" and len(told.get(("r1", 0), ())) >= 2) or (
            row["cancel"] == "decoding" and row["sampling"] == "beam" and num_steps == 40
        ):
            hear(engine.end("r1"))
        hear(engine.step())
        num_steps += 1
    return told, results


def check_kind(row: dict[str, str], result: Result, stops: tuple[str, ...]) -> None:
    """What any output must be, whatever it is compared with."""
    assert not any(stop in result.text for stop in stops)
    if stops or result.finish not in (FinishReason.EOS, FinishReason.STOP):
        return
    if row["constraint"] == "json":
        assert set(json.loads(result.text)) == {"ok", "of"}
    elif row["constraint"] == "regex":
        assert re.fullmatch(PATTERN, result.text)
    elif row["constraint"] == "choice":
        assert result.text in WORDS


ON_GPU = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=ON_GPU if row["target"] in NEEDS_GPU else [])
        for number, row in enumerate(ROWS)
    ],
)
def test_row(bench: Bench, number: int) -> None:
    row = ROWS[number]
    check_row(bench, row)
    if row["target"] == "ort" and row["sampling"] != "greedy":  # where tokens can be compared
        check_row(bench, row | {"sampling": "greedy"})


def check_row(bench: Bench, row: dict[str, str]) -> None:
    """Run a row and its requests alone, and compare them."""
    plain = row | {"chunk": "whole", "reuse": "off", "speculation": "none", "cancel": "none"}
    container = bench.container(row)
    stops: dict[str, tuple[str, ...]] = {}
    with bench.engine(plain, container) as engine:
        text = engine.text
        if row["stop"] == "strings":  # pieces of what would be said without them
            for request in requests_of(row | {"stop": "none"}, text, {}):
                said = engine.generate([request])[0].text
                if len(said) > 3:
                    stops[request.id] = (said[2:4],)
        requests = list(requests_of(row, text, stops))
        alone: dict[tuple[str, int], Result] = {}
        for request in requests:
            alone |= run(engine, plain, [request])[1]
    with bench.engine(row, container) as engine:
        told, found = run(engine, row, requests)
        check_engine(engine, row)
    assert set(found) == set(alone)
    if row["cancel"] == "queued":
        assert (found["r3", 0].finish, found["r3", 0].token_ids) == (FinishReason.CANCELLED, ())
    for key, result in found.items():
        assert tuple(told[key]) == result.token_ids
        check_kind(row, result, stops.get(key[0], ()))
        compare(row, text, result, alone[key])


def check_engine(engine: Engine, row: dict[str, str]) -> None:
    """Nothing leaked, and the row's features were at work."""
    stats = engine.stats
    assert stats.num_free_blocks == engine._runner._scheduler.cache.blocks.num_blocks
    # Prompts that fill no block are known at their end, and nobody waits for one token at a time.
    is_slow_and_wide = row["target"] == "cuda" and row["chunk"] == "1"
    if row["reuse"] == "off":
        assert stats.num_reused_tokens == 0
    elif row["target"] != "ort" and row["sampling"] != "beam" and not is_slow_and_wide:
        assert stats.num_reused_tokens > 0
    # What a choice leaves open is its first token; all others are forced, and nobody guesses them.
    is_open = row["sampling"] != "beam" and row["constraint"] != "choice"
    if row["speculation"] == "draft" and row["chunk"] == "whole" and is_open:
        assert stats.speculation is not None and stats.speculation.num_accepted > 0
    if row["speculation"] == "heads" and row["chunk"] != "1" and is_open:
        # They are asked; what untrained heads guess follows a constraint by chance only.
        assert stats.speculation is not None and stats.speculation.proposal_s > 0
        assert row["constraint"] != "none" or stats.speculation.num_drafted > 0


def compare(row: dict[str, str], text: Text, result: Result, alone: Result) -> None:
    """The tokens of a request beside others against those of the same request alone."""
    count = len(result.token_ids)
    is_cut = result.finish is FinishReason.CANCELLED
    if row["target"] == "ort":
        if is_measured(row):
            count = min(count, clear_length(row, text, alone))
            assert result.token_ids[:count] == alone.token_ids[:count]
        return
    if row["sampling"] == "beam" and row["cancel"] != "none" and result.request_id in ("r1", "r3"):
        return  # the best beam of a moment need not begin the best of the end
    assert result.token_ids == alone.token_ids[:count]
    if is_cut:
        return
    assert (result.token_ids, result.text, result.finish) == (
        alone.token_ids,
        alone.text,
        alone.finish,
    )
    # A tree's tokens see their ancestors in other rows than a chain's do, which the cuda target's
    # sums take in another order; and numpy, where it stands in for a GPU, sums as it likes.
    is_exact = row["speculation"] != "lookahead" and torch.cuda.is_available()
    if row["target"] == "cpu" or (row["target"] == "cuda" and is_exact):
        assert result.logprobs == alone.logprobs
    assert [r.token_ids for r in result.alternatives] == [r.token_ids for r in alone.alternatives]


def clear_length(row: dict[str, str], text: Text, result: Result) -> int:
    """How many tokens of a greedy output lead so far that rounding cannot change them."""
    constraint = CONSTRAINTS[row["constraint"]]
    eos_ids = frozenset(text.eos_ids)
    matcher = text.matcher(constraint, text.vocab_size, eos_ids) if constraint else None
    for place, choice in enumerate(result.logprobs or ()):
        scores = dict(choice.top)
        if matcher is not None:
            mask = matcher.mask()
            scores = {t: s for t, s in scores.items() if mask[t // 32] >> t % 32 & 1}
            matcher.accept(choice.token)
        best, *others = sorted(scores.values(), reverse=True)
        if others and best - others[0] < CLEAR[row["kv"]]:
            return place
    return len(result.token_ids)


def test_every_possible_pair_is_in_a_row() -> None:
    assert possible_pairs() == set().union(*map(pairs_of, ROWS))
    anywhere = [row for row in ROWS if row["target"] not in NEEDS_GPU]
    assert possible_pairs(EVERYWHERE) == set().union(*map(pairs_of, anywhere))
    assert all(is_possible(row) and list(row) == list(FACTORS) for row in ROWS)
