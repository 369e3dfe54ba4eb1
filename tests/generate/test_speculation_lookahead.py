"""Lookahead decoding: the tree of a step, the pool and window that it learns, and its tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculation_driver import Sequence, branch, drive, hashed, plain, repetitive

from qeff.core.errors import OptionValueError
from qeff.generate.request import SamplingParams
from qeff.generate.speculation import LookaheadProposer
from qeff.generate.speculation.lookahead import num_tree_tokens, num_window_tokens

SAMPLED = SamplingParams(temperature=0.7, top_p=0.9, frequency_penalty=0.1)


def window_of(proposer, name="a"):
    """The window as ``w[i][j]``, level by level."""
    columns = proposer._states[name].window
    return [list(level) for level in zip(*columns, strict=True)]


@pytest.mark.parametrize(("ngram", "window"), [(3, 1), (3, 4), (4, 4), (5, 3), (5, 8), (6, 2)])
def test_every_slot_of_the_window_sees_what_the_description_says(ngram, window):
    tokens = list(range(100, 200))  # all different: no slot is another's twin, no n-gram comes back
    proposer = LookaheadProposer(ngram=ngram, window=window, gcap=2)
    [draft] = proposer.propose([Sequence("a", tokens, limit=1000)])
    w = window_of(proposer)
    assert w[0][0] == tokens[-1]
    seen = {}
    for i in range(ngram - 1):
        for j in range(window):
            # (i, j) sees (0, 0..j) and (1..i, j); (0, 0) is the sequence's last token.
            visible = [w[0][k] for k in range(1, j + 1)] + [w[k][j] for k in range(1, i + 1)]
            if (i, j) != (0, 0):
                seen[i, j] = visible
    branches = [branch(draft, node) for node in range(len(draft))]
    assert sorted(branches) == sorted(seen.values())
    assert len(draft) == num_window_tokens(ngram, window)
    for (i, j), visible in seen.items():  # position p + i + j: as deep as the slot's numbers say
        assert len(visible) == i + j
    watched = sorted(branch(draft, node) for node in draft.watched)
    assert watched == sorted(seen[ngram - 2, j] for j in range(window))


def test_candidates_are_the_pool_entries_of_the_last_token_newest_first():
    tokens = [7, 1, 2, 3, 7, 1, 2, 4, 7, 5, 6, 8, 7]
    proposer = LookaheadProposer(ngram=4, window=1, gcap=2)
    [draft] = proposer.propose([Sequence("a", tokens, limit=1000)])
    branches = [branch(draft, node) for node in range(len(draft))]
    # "7 1 2 3" was there first and gave way; 1 2 of "7 1 2 4" stands once, as does 5 6 8.
    assert branches[:6] == [[5], [5, 6], [5, 6, 8], [1], [1, 2], [1, 2, 4]]
    assert [1, 2, 3] not in branches
    assert draft.watched == {len(draft) - 1}


def test_equal_beginnings_are_one_branch():
    tokens = [7, 1, 2, 3, 7, 1, 2, 4, 7, 1, 5, 6, 7]
    proposer = LookaheadProposer(ngram=4, window=1, gcap=4)
    [draft] = proposer.propose([Sequence("a", tokens, limit=1000)])
    branches = [branch(draft, node) for node in range(len(draft))]
    assert branches[:6] == [[1], [1, 5], [1, 5, 6], [1, 2], [1, 2, 4], [1, 2, 3]]


def test_a_step_teaches_the_pool_and_moves_the_window_by_one_level():
    tokens = list(range(100, 150))
    proposer = LookaheadProposer(ngram=4, window=3, gcap=4)
    sequence = Sequence("a", tokens, limit=1000)
    [draft] = proposer.propose([sequence])
    before = window_of(proposer)
    last = {tuple(branch(draft, node)): node for node in draft.watched}
    slots = [last[(*before[0][1 : j + 1], before[1][j], before[2][j])] for j in range(3)]
    proposer.learn("a", draft, {slot: 900 + j for j, slot in enumerate(slots)})
    after = window_of(proposer)
    assert after == [before[1], before[2], [900, 901, 902]]
    for j in range(3):  # what column j spelt stands under its first token
        sequence.tokens.append(before[0][j])
        [draft] = proposer.propose([sequence])
        spelt = [before[1][j], before[2][j], 900 + j]
        assert spelt in [branch(draft, node) for node in range(len(draft))]


def test_a_draft_that_never_ran_teaches_nothing_and_a_cut_one_what_it_ran():
    sequence = Sequence("a", [9, 50, 51, *range(100, 150)], limit=1000)
    proposer = LookaheadProposer(ngram=3, window=3, gcap=1)
    [old] = proposer.propose([sequence])
    sequence.tokens.append(9)
    [draft] = proposer.propose([sequence])
    before = window_of(proposer)
    proposer.learn("a", old, dict.fromkeys(old.watched, 5))
    assert window_of(proposer) == before
    cut = draft.cut(5)  # the candidate 50 51 and the first two columns
    proposer.learn("a", cut, {node: 70 + node for node in cut.watched})
    after = window_of(proposer)
    assert after[1][:2] == [72, 74] and after[1][2] == before[1][2]
    proposer.learn("nobody", draft, {})


@pytest.mark.parametrize("limit", range(1, 26))
def test_a_limit_shrinks_window_and_candidates(limit):
    tokens = [7, 1, 2, 3, 7, 4, 5, 6, 7, 8, 9, 10, 7, 11, 12, 13, 20, 21, 22, 23, 7]
    proposer = LookaheadProposer()
    [draft] = proposer.propose([Sequence("a", tokens, limit=limit)])
    assert len(draft) <= limit
    assert len(draft) >= min(limit, num_tree_tokens(4, 4, 4)) - 3  # less than a column is left
    assert draft.tokens[0] == 11  # the newest candidate comes before all
    if limit >= 5:
        assert draft.watched


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=20), min_size=1, max_size=3),
    st.integers(3, 5),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
)
def test_tokens_are_those_of_plain_decoding(
    prompts, ngram, window, gcap, limit, is_sampled, is_repetitive
):
    model = repetitive if is_repetitive else hashed
    params = SAMPLED if is_sampled else SamplingParams()
    sequences = [Sequence(str(i), p, params, 5 + i, limit) for i, p in enumerate(prompts)]
    proposer = LookaheadProposer(ngram=ngram, window=window, gcap=gcap)
    report = drive(model, proposer, sequences, 16)
    assert report.longest <= max(ngram, ngram + window - 2)
    for sequence in sequences:
        assert sequence.output == plain(model, sequence, len(sequence.output))


def test_a_repetitive_text_takes_few_steps():
    sequence = Sequence("a", [1, 2, 3], limit=1000)
    proposer = LookaheadProposer(ngram=5, window=8, gcap=8)
    report = drive(repetitive, proposer, [sequence], 200)
    assert sequence.output == plain(repetitive, sequence, len(sequence.output))
    assert report.num_steps <= 60
    assert report.longest >= 5


def test_the_window_finds_n_grams_that_the_text_has_not_shown():
    """With one column and no n-gram of the text, what is guessed comes from the window alone."""
    taught = LookaheadProposer(ngram=4, window=6, gcap=6)
    untaught = LookaheadProposer(ngram=4, window=6, gcap=6)
    untaught.learn = lambda *_: None
    steps = []
    for proposer in (taught, untaught):
        sequences = [Sequence(str(i), [i, i + 1, 3], limit=1000) for i in range(12)]
        steps.append(drive(repetitive, proposer, sequences, 40).num_accepted)
    assert steps[0] > steps[1]


@pytest.mark.parametrize(
    ("settings_", "sentence"),
    [
        ({"ngram": 2}, "ngram must be at least 3, not 2"),
        ({"window": 0}, "window must be at least 1, not 0"),
        ({"gcap": 0}, "gcap must be at least 1, not 0"),
    ],
)
def test_settings_without_meaning_are_refused(settings_, sentence):
    with pytest.raises(OptionValueError, match=sentence):
        LookaheadProposer(**settings_)


def test_a_forgotten_sequence_starts_over():
    proposer = LookaheadProposer()
    first = proposer.propose([Sequence("a", [1, 2, 3, 4, 5, 1], limit=30)])
    proposer.propose([Sequence("a", [1, 2, 3, 4, 5, 1, 2, 3, 8, 9], limit=30)])
    proposer.forget("a")
    assert proposer.propose([Sequence("a", [1, 2, 3, 4, 5, 1], limit=30)]) == first
    proposer.close()
    assert proposer.propose([Sequence("a", [1, 2, 3, 4, 5, 1], limit=30)]) == first
