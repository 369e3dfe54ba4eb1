"""A draft model: its cache, its steps, which drafts it refuses, and that no token changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_session import MockSession, answer
from speculation_driver import VOCAB, Sequence, choose, drive, hashed, plain, verify

from qeff.core.errors import OptionValueError, ResourceError
from qeff.generate.request import SamplingParams
from qeff.generate.speculation import DraftModelProposer, Vocabulary

SAMPLED = SamplingParams(temperature=1.0, top_k=30)
TARGET = Vocabulary(VOCAB)


def half_right(history, vocab):
    """The target's own logits after most histories, and others after the rest."""
    logits = answer(history, vocab)
    return logits if sum(history) % 4 else logits[::-1].copy()


def noisy(history, vocab):
    """Near the target's logits, as a smaller model of the same family is."""
    noise = np.random.default_rng([*history, 1]).standard_normal(vocab).astype(np.float32)
    return answer(history, vocab) + 0.3 * noise


def session(answers=half_right, vocab=VOCAB, **more):
    more = {"ctx_len": 64, "block_len": 4, "sequences": 2, "chunk": 5} | more
    return MockSession(vocab=vocab, answers=answers, **more)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=20), min_size=1, max_size=5),
    st.integers(1, 6),
    st.sampled_from([1, 3, 4, 64]),
    st.sampled_from([16, 22, 64]),
    st.booleans(),
    st.sampled_from([0.0, 0.5]),
)
def test_tokens_are_those_of_plain_decoding(
    prompts, limit, block_len, num_blocks, is_sampled, confidence
):
    params = SAMPLED if is_sampled else SamplingParams()
    sequences = [Sequence(str(i), p, params, 9 + i, limit) for i, p in enumerate(prompts)]
    draft = session(block_len=block_len, ctx_len=min(64, num_blocks * block_len))
    proposer = DraftModelProposer(draft, TARGET, num_blocks=num_blocks, min_confidence=confidence)
    drive(hashed, proposer, sequences, 12)
    assert proposer.num_free_blocks == num_blocks
    for sequence in sequences:
        assert sequence.output == plain(hashed, sequence, len(sequence.output))


def test_drafts_are_what_the_draft_model_would_say():
    sequence = Sequence("a", [1, 2, 3, 4, 5, 6, 7], limit=4)
    proposer = DraftModelProposer(session(), TARGET)
    for _ in range(12):
        [draft] = proposer.propose([sequence])
        expected = list(sequence.tokens)
        for _ in range(4):
            expected.append(int(np.argmax(half_right(expected, VOCAB))))
        assert list(draft.tokens) == expected[len(sequence.tokens) :]
        verify(hashed, sequence, draft)


def test_a_perfect_draft_is_always_right_greedy_or_sampled():
    for params in (SamplingParams(), SAMPLED):
        sequences = [Sequence(str(i), [i, 3], params, i, limit=4) for i in range(4)]
        proposer = DraftModelProposer(session(answer, sequences=4), TARGET)
        report = drive(hashed, proposer, sequences, 30)
        assert report.num_accepted == report.num_drafted
        assert report.num_steps == 6


def test_equal_random_numbers_make_like_models_agree():
    """Drawn with numbers of its own, a draft would be right as often as two draws agree."""
    sequences = [Sequence(str(i), [i, 3], SAMPLED, i, limit=1) for i in range(4)]
    proposer = DraftModelProposer(session(noisy, sequences=4), TARGET)
    report = drive(hashed, proposer, sequences, 50)
    chance = np.random.default_rng(0)
    agreed = []
    for _ in range(400):
        logits = hashed(tuple(chance.integers(0, VOCAB, 5).tolist()))
        draws = [
            choose(logits, Sequence("x", [1], SAMPLED, int(chance.integers(1 << 30))).row([]))
            for _ in range(2)
        ]
        agreed.append(draws[0] == draws[1])
    assert report.num_accepted / report.num_drafted > np.mean(agreed) + 0.2


def test_all_sequences_share_the_steps_and_only_what_is_missing_runs():
    draft = session(answer, sequences=4, chunk=8)
    proposer = DraftModelProposer(draft, TARGET)
    sequences = [Sequence(str(i), [i] * (4 + i), limit=3) for i in range(4)]
    proposer.propose(sequences)
    assert draft.step_sizes == [4 + 5 + 6 + 7, 4, 4]
    for sequence in sequences:  # all three right, and the target's own fourth
        sequence.tokens += plain(hashed, sequence, 4)
    draft.step_sizes.clear()
    proposer.propose(sequences)
    assert draft.step_sizes == [2 * 4, 4, 4]  # the third guess was never run by the draft
    draft.step_sizes.clear()
    for sequence in sequences:  # all wrong: one token each
        right = plain(hashed, Sequence("x", sequence.tokens), 1)[0]
        sequence.tokens.append((right + 1) % VOCAB)
    proposer.propose(sequences)
    assert draft.step_sizes == [4, 4, 4]


def test_a_long_prompt_is_read_in_chunks_beside_the_others():
    draft = session(answer, chunk=5)
    proposer = DraftModelProposer(draft, TARGET)
    drafts = proposer.propose([Sequence("a", [1, 2], limit=2), Sequence("b", [7] * 13, limit=2)])
    assert [len(one) for one in drafts] == [2, 2]
    assert draft.step_sizes == [2 + 5, 1 + 5, 3, 1]


def test_more_sequences_than_the_draft_takes_run_in_turns():
    draft = session(answer, sequences=2, chunk=8)
    proposer = DraftModelProposer(draft, TARGET, num_blocks=64)
    drafts = proposer.propose([Sequence(str(i), [i, 1], limit=2) for i in range(5)])
    assert [len(one) for one in drafts] == [2] * 5
    assert draft.step_sizes == [4, 4, 2, 2, 2, 1]


def test_blocks_that_run_out_are_taken_from_the_longest_idle():
    proposer = DraftModelProposer(session(ctx_len=16), TARGET, num_blocks=6)
    a, b, c = (Sequence(name, [ord(name) % 60] * 7, limit=2) for name in "abc")
    assert all(map(len, proposer.propose([a])))  # two blocks each
    assert all(map(len, proposer.propose([b])))
    assert all(map(len, proposer.propose([c])))
    assert proposer.num_free_blocks == 0
    a.tokens += [1]
    assert len(proposer.propose([a])[0])  # a third block: b, idle longest, has to go
    assert proposer.num_free_blocks == 1
    b.tokens += [1] * 6  # thirteen tokens, four blocks: c goes, and then a
    assert len(proposer.propose([b])[0])
    assert proposer.num_free_blocks == 2
    proposer.close()
    assert proposer.num_free_blocks == 6


def test_without_idle_sequences_one_goes_without_a_draft_and_lets_the_others_go_on():
    draft = session(ctx_len=16)
    proposer = DraftModelProposer(draft, TARGET, num_blocks=4)
    a, b = Sequence("a", [1] * 9, limit=2), Sequence("b", [2] * 9, limit=2)
    assert [len(one) for one in proposer.propose([a, b])] == [2, 0]
    assert proposer.num_free_blocks == 1
    draft.step_sizes.clear()
    assert [len(one) for one in proposer.propose([b, a])] == [0, 2]
    assert sum(draft.step_sizes) == 2  # the other kept what it had
    proposer.forget("a")
    assert [len(one) for one in proposer.propose([b])] == [2]


def test_a_draft_ends_with_the_context_of_its_model():
    proposer = DraftModelProposer(session(ctx_len=8), TARGET)
    lengths = [
        len(proposer.propose([Sequence(str(n), [3] * n, limit=4)])[0]) for n in (4, 5, 6, 7, 8, 9)
    ]
    assert lengths == [4, 4, 3, 2, 1, 0]


def test_vocabularies_that_differ_by_padding_go_together():
    def shared(history, vocab):
        return np.append(answer(history, 60), np.full(vocab - 60, 9, np.float32))

    for num_logits in (62, 64, 70):
        draft = session(shared, vocab=num_logits)
        sequences = [Sequence(str(i), [i, 5], seed=i, limit=3) for i in range(3)]
        proposer = DraftModelProposer(
            draft, Vocabulary(VOCAB, 60), draft=Vocabulary(num_logits, 60)
        )
        for one in proposer.propose(sequences):
            assert all(token < VOCAB for token in one.tokens)
    # A token that the draft has no row for: it stays out of the way.
    proposer = DraftModelProposer(
        session(answer, vocab=62), Vocabulary(VOCAB, 60), draft=Vocabulary(62, 60)
    )
    assert [len(one) for one in proposer.propose([Sequence("a", [1, 63, 2])])] == [0]


def test_no_token_that_may_come_ends_a_draft_and_not_a_request():
    """The only tokens allowed are beyond the draft's rows."""
    sequence = Sequence("a", [1, 2], SamplingParams(logit_bias={63: 100.0, 62: 100.0}))
    other = Sequence("b", [1, 2], limit=2)
    mask = np.zeros(2, np.int32)
    mask[1] = np.int32(-(2**30))  # tokens 62 and 63
    ordinary = sequence.row
    sequence.row = lambda drafted: replace(ordinary(drafted), allowed=mask)
    proposer = DraftModelProposer(
        session(answer, vocab=62), Vocabulary(VOCAB, 60), draft=Vocabulary(62, 60)
    )
    assert [len(one) for one in proposer.propose([sequence, other])] == [0, 2]


@pytest.mark.parametrize(
    ("target", "draft", "sentence"),
    [
        (Vocabulary(64), None, "vocabulary has 32 tokens and the target's 64"),
        (Vocabulary(16), None, "vocabulary has 32 tokens and the target's 16"),
        (Vocabulary(64, 60), Vocabulary(32, 30), "tokenizer has 30 tokens and the target's 60"),
        (Vocabulary(32, 30), Vocabulary(32, 29), "tokenizer has 29 tokens and the target's 30"),
    ],
)
def test_a_draft_of_another_vocabulary_is_refused(target, draft, sentence):
    with pytest.raises(OptionValueError, match=sentence):
        DraftModelProposer(session(vocab=32), target, draft=draft)


def test_too_few_blocks_are_refused():
    with pytest.raises(ResourceError, match="3 cache blocks of the draft model do not hold"):
        DraftModelProposer(session(), TARGET, num_blocks=3)
    with pytest.raises(ResourceError, match="hold one context of its 64 tokens"):
        DraftModelProposer(session(max_blocks=15), TARGET)


def test_a_confident_draft_model_stops_where_it_is_not():
    def sharp(history, vocab):  # sure of itself after even sums
        return answer(history, vocab) * (10 if sum(history) % 2 == 0 else 0.1)

    sequences = [Sequence(str(i), [i, 7], limit=8) for i in range(20)]
    proposer = DraftModelProposer(
        session(sharp, sequences=20), TARGET, min_confidence=0.5, num_blocks=400
    )
    drafts = proposer.propose(sequences)
    for sequence, draft in zip(sequences, drafts, strict=True):
        for place, _ in enumerate(draft.tokens):
            assert (sum(sequence.tokens) + sum(draft.tokens[:place])) % 2 == 0
        if len(draft) < 8:
            assert (sum(sequence.tokens) + sum(draft.tokens)) % 2 == 1
    assert 0 < sum(map(len, drafts)) < 100


def test_closing_closes_the_session():
    draft = session()
    DraftModelProposer(draft, TARGET).close()
    assert draft.is_closed
