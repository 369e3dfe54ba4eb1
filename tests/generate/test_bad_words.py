"""Texts that may not be written: forbidden by any tokens, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_session import MockSession
from tiny_tokenizers import KINDS, text_files

from qeff.generate import Engine, Request, SamplingParams, SpeculationConfig, Text
from qeff.generate.bad_words import TokenTexts
from qeff.generate.detokenize import UNFINISHED
from qeff.generate.drafting import Drafting

TEXTS = {kind: Text(text_files(make())) for kind, make in KINDS.items()}
BYTES = st.text("ab", min_size=1, max_size=4)


@given(
    texts=st.lists(st.text("ab", max_size=3), min_size=1, max_size=8),
    words=st.lists(BYTES, min_size=1, max_size=3),
    data=st.data(),
)
def test_exactly_the_tokens_that_complete_a_word(texts, words, data):
    tokens = [text.encode() for text in texts]
    history = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=6))

    def tail(count):
        return history[-count:] if count else []

    def completes(token):
        before = b"".join(tokens[one] for one in history)
        both = before + tokens[token]
        return any(
            both[:end].endswith(word.encode())
            for word in words
            for end in range(len(before) + 1, len(both) + 1)
        )

    found = TokenTexts(tokens).bad_words(tuple(words)).completing(tail)
    assert set().union(*(part.tolist() for part in found)) == {
        token for token in range(len(tokens)) if completes(token)
    }


def engine(text, speculation=None, answers=None):
    session = MockSession(vocab=text.vocab_size, ctx_len=96, supports_trees=True, answers=answers)
    drafting = None
    if speculation is not None:
        config = SpeculationConfig(kind=speculation, is_adaptive=False)
        drafting = Drafting.start(config, session.caps)
    return Engine(session, text, drafting=drafting)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_output_holds_a_bad_word(kind, data):
    text = TEXTS[kind]
    params = data.draw(
        st.sampled_from(
            [
                SamplingParams(max_tokens=30),
                SamplingParams(max_tokens=30, temperature=1.5, seed=3, n=2),
                SamplingParams(max_tokens=12, beam_width=3, n=2),
            ]
        )
    )
    prompt = tuple(text.encode("the quick"))

    def run(speculation=None, **more):
        made = replace(params, **more)
        (result,) = engine(text, speculation).generate([Request(prompt, made)])
        return [one.text for one in (result, *result.alternatives)]

    # The mark for bytes that are no character is no text: tokens at random write it often.
    said, length = run()[0], data.draw(st.integers(1, 3))
    parts = {said[start : start + length] for start in range(len(said))}
    whole = sorted(part for part in parts if UNFINISHED not in part)
    words = [data.draw(st.sampled_from(["e", *whole])), "the"]
    speculation = data.draw(st.sampled_from([None, "prompt_lookup", "lookahead"]))
    found = run(speculation, bad_words=words)
    assert not any(word in one for word in words for one in found)
    assert found == run(bad_words=words)


def test_a_word_that_would_not_come_changes_nothing():
    text = TEXTS["byte_level"]
    plain, other = (
        engine(text).generate(["the quick"], SamplingParams(max_tokens=20, bad_words=words))[0]
        for words in ((), ("no such words",))
    )
    assert plain.token_ids == other.token_ids


def test_what_the_prompt_has_begun_is_not_completed():
    text = TEXTS["byte_level"]
    brown = text.encode(" brown", add_special_tokens=False)

    def answers(history, vocab):
        logits = [0.0] * vocab
        logits[brown[-1]] = 1.0
        return logits

    made = engine(text, answers=answers)
    prompt = [*text.encode("the quick", add_special_tokens=False), *brown[:-1]]
    free, forbidden = (
        made.generate([prompt], SamplingParams(max_tokens=1, bad_words=words))[0].token_ids
        for words in ((), ("quick brown",))
    )
    assert free == (brown[-1],) != forbidden


def test_names_of_special_tokens_are_words_only_where_they_are_written():
    text = TEXTS["byte_level"]
    end = text.tokenizer.token_to_id("<|im_end|>")
    for skips, forbidden in ((True, []), (False, [end])):
        tokens = text.token_texts(text.vocab_size, skip_special_tokens=skips)
        found = tokens.bad_words(("im_end",)).completing(lambda count: [])
        assert [token for part in found for token in part.tolist()] == forbidden
