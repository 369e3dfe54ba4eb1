"""Prompt lookup: what it finds, how far it copies, and that it never changes a token."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculation_driver import Sequence, drive, hashed, plain, repetitive

from qeff.core.errors import OptionValueError
from qeff.generate.request import SamplingParams
from qeff.generate.speculation import PromptLookupProposer

PROMPTS = st.lists(st.integers(0, 9), min_size=1, max_size=24)
SAMPLED = SamplingParams(temperature=0.8, top_k=12, repetition_penalty=1.1)


def proposal(tokens, limit=8, **settings):
    [draft] = PromptLookupProposer(**settings).propose([Sequence("a", tokens, limit=limit)])
    assert draft.is_chain and not draft.watched
    return list(draft.tokens)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1]),  # two agree: four at most
        ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], [4, 5, 6, 7, 8, 1]),
        ([7, 1, 2, 9, 3, 1, 2, 9, 4, 1, 2, 9], [4, 1, 2, 9, 4, 1]),  # the later of two, and on
        ([1, 2, 9, 5, 5, 5, 2, 9, 8, 1, 2, 9], [5, 5, 5, 2, 9, 8]),  # three agree better than two
        ([4, 4, 4, 4, 4], [4] * 8),  # a text that repeats goes on repeating
        ([1, 2, 1, 2, 1, 2, 1], [2, 1, 2, 1, 2, 1, 2, 1]),
        ([1, 2, 3, 4], []),
        ([1, 2, 3, 1], []),  # one token is no agreement
        ([1], []),
    ],
)
def test_what_followed_the_longest_agreement(tokens, expected):
    assert proposal(tokens) == expected


def test_settings_bound_what_counts_as_agreement():
    assert proposal([1, 2, 3, 1], min_ngram=1) == [2, 3]
    assert proposal([1, 2, 3, 4, 5, 1, 2], min_ngram=3) == []
    assert proposal([4] * 20, limit=3) == [4] * 3
    with pytest.raises(OptionValueError, match="min_ngram 3 must be from 1 to max_ngram 2"):
        PromptLookupProposer(max_ngram=2, min_ngram=3)


def test_a_source_that_was_right_is_followed_further():
    # "1 2" stands twice; the draft came from after "5 1 2", and one token later goes on there.
    lookup = PromptLookupProposer(max_ngram=2)
    sequence = Sequence("a", [5, 1, 2, 7, 8, 9, 10, 6, 7, 8, 0, 3, 5, 1], limit=2)
    assert lookup.propose([sequence])[0].tokens == (2, 7)
    sequence.tokens += [2, 7, 8]  # "7 8" alone was followed by 0 last
    assert lookup.propose([sequence])[0].tokens == (9, 10)
    sequence.tokens += [0]
    assert lookup.propose([sequence])[0].tokens == (3, 5)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(PROMPTS, min_size=1, max_size=3),
    st.integers(1, 12),
    st.integers(1, 3),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
def test_tokens_are_those_of_plain_decoding(prompts, limit, low, more, is_sampled, is_repetitive):
    model = repetitive if is_repetitive else hashed
    params = SAMPLED if is_sampled else SamplingParams()
    sequences = [Sequence(str(i), p, params, 77 + i, limit) for i, p in enumerate(prompts)]
    drive(model, PromptLookupProposer(max_ngram=low + more, min_ngram=low), sequences, 24)
    for sequence in sequences:
        assert sequence.output == plain(model, sequence, len(sequence.output))


def test_a_repetitive_text_is_mostly_guessed():
    sequence = Sequence("a", [1, 2, 3], limit=8)
    report = drive(repetitive, PromptLookupProposer(), [sequence], 400)
    assert report.num_accepted / report.num_drafted > 0.9
    assert report.num_steps < 120


def test_copying_a_part_of_the_prompt_gets_drafts_of_full_length():
    text = np.random.default_rng(0).permutation(2000)[:600].tolist()
    lookup, done, num_steps = PromptLookupProposer(), 2, 0
    sequence = Sequence("a", text + text[:2], limit=8)
    while done < 400:
        [draft] = lookup.propose([sequence])
        assert list(draft.tokens) == text[done : done + len(draft)]
        sequence.tokens += text[done : done + len(draft) + 1]
        done += len(draft) + 1
        num_steps += 1
    assert num_steps < 50


def test_a_sequence_that_starts_over_is_read_anew():
    lookup = PromptLookupProposer()
    assert lookup.propose([Sequence("a", [1, 2, 3, 1, 2])])[0].tokens == (3, 1, 2, 3)
    lookup.forget("a")
    assert lookup.propose([Sequence("a", [4, 5, 6, 7, 8, 9, 1, 2])])[0].tokens == ()
    lookup.close()
    assert lookup.propose([Sequence("a", [1, 2])])[0].tokens == ()


def test_a_proposal_costs_microseconds_however_long_the_text_is():
    text = np.random.default_rng(0).integers(0, 50, 20_000).tolist()
    lookup, sequence = PromptLookupProposer(), Sequence("a", text, limit=8)
    lookup.propose([sequence])
    best = float("inf")
    for token in text[:200]:
        sequence.tokens.append(token)
        started_at = time.perf_counter()
        lookup.propose([sequence])
        best = min(best, time.perf_counter() - started_at)
    assert best < 100e-6  # about 10; reading the whole text would be 20 000
