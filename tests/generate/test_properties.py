"""Any load on any engine gives each request the tokens that it gives alone.

The session is a mock whose next token is a hash of its true context, so that any block, row or
position that is mixed up shows at once; the same loads then run on the native engine, bit for bit.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mock_session import MockSession, answer
from random_load import (
    check_blocks,
    check_empty,
    check_outputs,
    loads,
    play,
    serve_alone,
    speculations,
)

from qeff.generate import Engine, drafting, runner
from qeff.generate.drafting import Drafting

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))

VOCAB, CTX_LEN, LONGEST = 24, 64, 44
EOS = (1,)
# Telling why an example fails takes minutes, and shrinking one is for whoever looks at it.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


class Clock:
    """Time that passes at random but alike in every run: the governor of drafts goes by it."""

    def __init__(self) -> None:
        self._draws = random.Random(0)
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self._draws.choice((1e-5, 1e-3, 2e-3, 5e-2))
        return self._now


@pytest.fixture(autouse=True)
def same_time(monkeypatch):
    for module in (runner, drafting):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=Clock()))


def rhythmic(history, vocab):
    """A hash of the whole history that leans to the token of three places before."""
    logits = answer(history, vocab)
    if len(history) > 3:
        logits[history[-3]] += 6
    return logits


def near(history, vocab):
    """What a draft model makes of the same history: often the same."""
    logits = rhythmic(history, vocab)
    if sum(history) % 3 == 0:
        logits = logits[::-1].copy()
    return logits


def check_index(engine: Engine) -> None:
    """Every block that the prefix index knows holds what the index says, under its parents."""
    session = engine.session
    for node in engine._runner._scheduler.cache.index._nodes.values():
        first = node.block * session.caps.block_len
        assert session.cache[first : first + len(node.tokens)].tolist() == list(node.tokens)


@st.composite
def engines(draw):
    """An engine of any sizes over a mock, with any proposer."""
    block_len = draw(st.sampled_from([1, 2, 4, 8, 16, 32, CTX_LEN]))
    chunk = draw(st.integers(1, CTX_LEN))
    chooses = draw(st.booleans())
    session = MockSession(
        vocab=VOCAB,
        ctx_len=CTX_LEN,
        block_len=block_len,
        sequences=draw(st.integers(1, 6)),
        chunk=chunk,
        answers=rhythmic,
        supports_trees=True,
        quick_tokens=draw(st.sampled_from([None, 1, 8])),
        window=draw(st.sampled_from([None, None, 1, 5, 16, 33])),
        chooses=chooses,
        overlaps=chooses and draw(st.booleans()),
    )
    config = draw(speculations())
    drafting = None
    if config is not None:
        draft = MockSession(
            vocab=VOCAB,
            ctx_len=draw(st.sampled_from([40, CTX_LEN])),
            block_len=8,
            sequences=draw(st.integers(1, 3)),
            chunk=16,
            answers=near,
        )
        drafting = Drafting.start(
            config, session.caps, draft=draft if config.kind == "draft" else None
        )
    return Engine(
        session,
        eos_ids=EOS,
        num_blocks=-(-CTX_LEN // block_len) + draw(st.integers(0, 24)),
        max_step_tokens=draw(st.sampled_from([None, 1, 2, 5, 17, 64])),
        reuse_prefixes=draw(st.sampled_from([True, True, False])),
        drafting=drafting,
    )


def plain_engine(window: int | None) -> Engine:
    """One sequence in one block, all at once, nothing reused, nothing guessed."""
    session = MockSession(
        vocab=VOCAB, ctx_len=CTX_LEN, chunk=CTX_LEN, sequences=16, answers=rhythmic, window=window
    )
    return Engine(session, eos_ids=EOS, reuse_prefixes=False)


@settings(
    max_examples=120,
    deadline=None,
    phases=PHASES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(engine=engines(), load=loads(VOCAB, LONGEST))
def test_every_request_gives_what_it_gives_alone(engine, load):
    def after_step():
        check_blocks(engine)
        check_index(engine)

    played = play(engine, load, after_step)
    check_empty(engine)
    for arrival in load:
        alone = serve_alone(plain_engine(engine.session.caps.window), arrival.request)
        check_outputs(played, arrival.request, alone)


# ---- the native engine -------------------------------------------------------------------------

NATIVE_VOCAB, NATIVE_CTX, NATIVE_LONGEST = 96, 128, 100


class Limited:
    """A session that says it can take less than it could, so that any limits can be tried."""

    def __init__(self, session, **limits):
        self._session = session
        self.caps = replace(session.caps, **limits)

    def __getattr__(self, name):
        return getattr(self._session, name)

    def close(self):
        """Stays open: it is used by many examples."""


@pytest.fixture(scope="module", params=[("q4_0", "fp16"), ("q8_0", "mxint8"), ("f32", "fp32")])
def sessions(request, tmp_path_factory):
    from native_folder import open_folder
    from tiny_decoder import write_decoder

    form, kv = request.param
    folder = write_decoder(tmp_path_factory.mktemp("decoder"), form, kv)
    opened = [open_folder(folder, 1, NATIVE_CTX) for _ in range(3)]
    yield opened
    for session in opened:
        session.close()


@settings(
    max_examples=15,
    deadline=None,
    phases=PHASES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    chunk=st.integers(1, NATIVE_CTX),
    budget=st.sampled_from([None, 3, 20, 100]),
    spare=st.integers(0, 12),
    num_sequences=st.integers(1, 6),
    config=speculations(),
    load=loads(NATIVE_VOCAB, NATIVE_LONGEST),
)
def test_the_native_engine_gives_the_same_bits(
    sessions, chunk, budget, spare, num_sequences, config, load
):
    plain = Limited(sessions[0], max_sequences=16)
    alone = [
        serve_alone(Engine(plain, eos_ids=EOS, reuse_prefixes=False), arrival.request)
        for arrival in load
    ]
    session = Limited(sessions[1], max_sequences=num_sequences, max_step_tokens=chunk)
    guesses = None
    if config is not None:
        draft = Limited(sessions[2], max_sequences=3) if config.kind == "draft" else None
        guesses = Drafting.start(config, session.caps, draft=draft)
    engine = Engine(
        session,
        eos_ids=EOS,
        num_blocks=-(-NATIVE_CTX // session.caps.block_len) + spare,
        max_step_tokens=budget,
        drafting=guesses,
    )
    played = play(engine, load, lambda: check_blocks(engine))
    check_empty(engine)
    for arrival, expected in zip(load, alone, strict=True):
        check_outputs(played, arrival.request, expected)
