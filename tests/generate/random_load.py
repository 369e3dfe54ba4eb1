"""Requests that come and go at random, and what must be true of any engine that serves them.

``play`` drives an engine through arrivals and cancellations and keeps all that it says;
``check_outputs`` compares that with every request served alone. Hypothesis draws the load. Knows
nothing of what kind of session is below.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from qeff.generate import Delta, Engine, FinishReason, Request, Result, SamplingParams
from qeff.generate.speculation import SpeculationConfig

MAX_STEPS = 5000


@dataclass
class Arrival:
    """A request, the step before which it comes, and how many steps later it is cancelled."""

    at: int
    request: Request
    patience: int | None = None


@dataclass
class Played:
    """Everything an engine said: deltas by request and output, and who was cancelled."""

    streams: dict[tuple[str, int], list[Delta]] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    num_steps: int = 0

    def hear(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self.streams.setdefault((delta.request_id, delta.index), []).append(delta)


def play(engine: Engine, arrivals: list[Arrival], after_step=lambda: None) -> Played:
    """Run all arrivals to their ends."""
    played = Played()
    waiting = sorted(arrivals, key=lambda arrival: arrival.at)
    while waiting or engine.has_work:
        while waiting and waiting[0].at <= played.num_steps:
            engine.add(waiting.pop(0).request)
        for arrival in arrivals:
            if arrival.patience is not None and arrival.at + arrival.patience == played.num_steps:
                deltas = engine.end(arrival.request.id)
                played.hear(deltas)
                if deltas:
                    played.cancelled.add(arrival.request.id)
                after_step()
        played.hear(engine.step())
        after_step()
        played.num_steps += 1
        assert played.num_steps < MAX_STEPS, "the engine makes no headway"
    return played


def serve_alone(engine: Engine, request: Request) -> dict[int, Result]:
    """The results of a request that has an engine for itself, by index."""
    played = play(engine, [Arrival(0, request)])
    return {index: deltas[-1].result for (_, index), deltas in played.streams.items()}


def check_outputs(played: Played, request: Request, alone: dict[int, Result]) -> None:
    """Every output is that of the request alone, or a beginning of it where it was cancelled."""
    outputs = {i: d for (name, i), d in played.streams.items() if name == request.id}
    assert set(outputs) == set(alone), "an output is missing, or one too many"
    is_beam = request.params.beam_width > 1
    for index, deltas in outputs.items():
        found, expected = deltas[-1].result, alone[index]
        assert found is not None and not any(delta.result for delta in deltas[:-1])
        told = tuple(token for delta in deltas for token in delta.token_ids)
        assert told == found.token_ids, "a token was lost or told twice"
        if is_beam and request.id in played.cancelled:
            continue  # the best beam of a moment need not begin the best of the end
        if found.finish is FinishReason.CANCELLED:
            assert request.id in played.cancelled
            count = len(found.token_ids)
            assert found.token_ids == expected.token_ids[:count]
            assert found.logprobs is None or found.logprobs == expected.logprobs[:count]
            continue
        for name, value in summary(found).items():
            assert value == summary(expected)[name], f"{name} of {request.id} differ"
        if request.params.logprobs is not None and not is_beam:
            choices = tuple(choice for delta in deltas for choice in delta.logprobs)
            assert choices == expected.logprobs


def summary(result: Result) -> dict:
    """All of a result that may depend on the request alone."""
    names = (
        "prompt",
        "token_ids",
        "text",
        "finish",
        "logprobs",
        "prompt_logprobs",
        "cumulative_logprob",
    )
    found = {name: getattr(result, name) for name in names}
    return found | {"alternatives": [summary(other) for other in result.alternatives]}


def check_empty(engine: Engine) -> None:
    """Nothing is left of the requests that were: no block, no queue, no note of a proposer."""
    runner = engine._runner
    blocks = runner._scheduler.cache.blocks
    assert engine.stats.num_free_blocks == blocks.num_blocks, "a block leaked"
    assert not any(blocks.num_users(block) for block in range(blocks.num_blocks))
    assert not (runner._tasks or runner._requests or runner._searches)
    assert not (runner._scheduler.running or runner._scheduler.waiting)
    drafting = runner._drafting
    if drafting is not None:
        assert not drafting.governor._sequences
        for name in ("_histories", "_states", "_tracks"):
            assert not getattr(drafting.proposer, name, None), f"{name} of a request that is done"
        held = getattr(drafting.proposer, "_blocks", None)
        assert held is None or held.num_free == held.num_blocks, "a block of the draft leaked"


def check_blocks(engine: Engine) -> None:
    """The users of each block are the sequences that hold it; a free one is kept or empty."""
    scheduler = engine._runner._scheduler
    blocks = scheduler.cache.blocks
    num_users = [0] * blocks.num_blocks
    for sequence in scheduler.running:
        for block in sequence.blocks[sequence.num_dropped :]:
            num_users[block] += 1
    assert num_users == [blocks.num_users(block) for block in range(blocks.num_blocks)]
    assert all(not sequence.blocks for sequence in scheduler.waiting)
    assert blocks.num_free == num_users.count(0)


# ---- what hypothesis draws ---------------------------------------------------------------------


@st.composite
def prompts(draw, vocab: int, longest: int) -> tuple[int, ...]:
    """Prompts of which many begin alike, and many repeat themselves."""
    stem = draw(st.sampled_from(range(3)))
    whole = [(7 * stem + 3 * place + place * place // 5) % vocab for place in range(longest)]
    shared = whole[: draw(st.integers(0, longest))]
    tail = draw(st.lists(st.integers(0, min(vocab, 6) - 1), max_size=8))
    found = (*shared, *tail)[:longest]
    return found or (draw(st.integers(0, vocab - 1)),)


@st.composite
def params(draw, vocab: int, *, most: int = 16) -> SamplingParams:
    """Any of the ways to choose tokens."""
    chosen: dict = {
        "max_tokens": draw(st.one_of(st.none(), st.integers(1, most))),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "ignore_eos": draw(st.booleans()),
        "stop_token_ids": tuple(draw(st.lists(st.integers(0, vocab - 1), max_size=2))),
        "logprobs": draw(st.sampled_from([None, None, 0, 2])),
    }
    kind = draw(st.sampled_from(["greedy", "sampled", "penalties", "several", "beams"]))
    if kind == "beams":
        chosen["max_tokens"] = draw(st.integers(1, most))
        chosen["beam_width"] = draw(st.integers(2, 4))
        chosen["n"] = draw(st.integers(1, chosen["beam_width"]))
        chosen["length_penalty"] = draw(st.sampled_from([0.0, 1.0, 2.0]))
        chosen["early_stopping"] = draw(st.booleans())
        return SamplingParams(**chosen)
    if chosen["max_tokens"] and draw(st.booleans()):
        chosen["min_tokens"] = draw(st.integers(0, chosen["max_tokens"]))
    chosen["prompt_logprobs"] = draw(st.sampled_from([None, None, None, 1]))
    if kind != "greedy":
        chosen["temperature"] = draw(st.sampled_from([0.3, 0.8, 1.5]))
        chosen["top_p"] = draw(st.sampled_from([0.6, 0.95, 1.0]))
        chosen["top_k"] = draw(st.sampled_from([0, 5]))
    if kind == "several":
        chosen["n"] = draw(st.integers(2, 3))
    if kind == "penalties":
        chosen["temperature"] = draw(st.sampled_from([0.0, 0.8]))
        chosen["repetition_penalty"] = draw(st.sampled_from([0.8, 1.3]))
        chosen["presence_penalty"] = draw(st.sampled_from([0.0, 0.7]))
        chosen["frequency_penalty"] = draw(st.sampled_from([0.0, 0.4]))
        chosen["logit_bias"] = {draw(st.integers(0, vocab - 1)): draw(st.sampled_from([-100, 2]))}
        chosen["bad_token_ids"] = tuple(
            draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=2))
        )
    return SamplingParams(**chosen)


@st.composite
def loads(draw, vocab: int, longest: int, most: int = 6) -> list[Arrival]:
    """A few requests, when they come, and which of them are cancelled when."""
    found = []
    for index in range(draw(st.integers(1, most))):
        request = Request(
            draw(prompts(vocab, longest)),
            draw(params(vocab)),
            id=f"r{index}",
            priority=draw(st.sampled_from([0, 0, 0, 1, -1])),
            cache_salt=draw(st.sampled_from(["", "", "other"])),
        )
        patience = draw(st.one_of(st.none(), st.none(), st.integers(0, 20)))
        found.append(Arrival(draw(st.integers(0, 12)), request, patience))
    return found


@st.composite
def speculations(draw) -> SpeculationConfig | None:
    """Any proposer, or none."""
    kind = draw(st.sampled_from([None, "prompt_lookup", "lookahead", "draft"]))
    if kind is None:
        return None
    return SpeculationConfig(
        kind=kind,
        num_tokens=draw(st.one_of(st.none(), st.integers(1, 7))),
        is_adaptive=draw(st.booleans()),
        min_ngram=1,
        max_ngram=draw(st.integers(1, 3)),
        ngram=draw(st.integers(3, 4)),
        window=draw(st.integers(1, 4)),
        gcap=draw(st.integers(1, 3)),
        min_confidence=draw(st.sampled_from([0.0, 0.3])),
    )
