"""Stop strings: found across any borders, held back while they may come, never in the text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mock_session import MockSession, choose
from tiny_tokenizers import KINDS, text_files

from qeff.generate import Engine, FinishReason, SamplingParams, Text
from qeff.generate.detokenize import StopMatcher

STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def first_stop(text, stops):
    """Read letter by letter, and stop at the first end of a stop string."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(text=st.text("ab", max_size=30), stops=STOPS, cuts=st.lists(st.integers(0, 6), max_size=30))
@example(text="abab", stops=["abab", "ba"], cuts=[4])
def test_the_same_stop_whatever_the_pieces(text, stops, cuts):
    matcher, found, place = StopMatcher(stops), "", 0
    for cut in [*cuts, len(text)]:
        if matcher.is_stopped:
            break
        found += matcher.push(text[place : place + cut])
        place += cut
        assert first_stop(text, stops)[0].startswith(found)
    found += matcher.flush()
    assert (found, matcher.is_stopped) == first_stop(text, stops)


def test_only_a_possible_beginning_is_held_back():
    matcher = StopMatcher(["END", "\n\n"])
    assert [matcher.push(piece) for piece in ("abE", "N", "x\n", "y", "EN")] == [
        "ab",
        "",
        "ENx",
        "\ny",
        "",
    ]
    assert not matcher.is_stopped and matcher.flush() == "EN"
    assert StopMatcher([]).push("END") == "END"


class Script(MockSession):
    """A session that says a given text, whatever it is asked."""

    def __init__(self, ids, vocab):
        super().__init__(vocab=vocab, ctx_len=256)
        self.ids = ids

    def step(self, batch):
        logits = np.zeros((len(batch.logit_rows), self.caps.vocab_size), np.float32)
        for row, index in enumerate(batch.logit_rows):
            logits[row, self.ids[batch.positions[index]]] = 1  # the prompt is one token long
        return choose(logits, batch.choices)


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_stops_at_strings_across_tokens(kind):
    text = Text(text_files(KINDS[kind]()))
    said = "the fox 🙂 says: stop here. </s> the rest"
    prompt = text.encode("the", add_special_tokens=False)[-1:]
    ids = text.encode(said, add_special_tokens=False)

    def run(**params):
        engine = Engine(Script(ids, text.vocab_size), text)
        deltas = list(engine.stream(prompt, SamplingParams(**params)))
        result = deltas[-1].result
        assert "".join(delta.text for delta in deltas) == result.text
        assert [t for delta in deltas for t in delta.token_ids] == list(result.token_ids)
        assert list(result.token_ids) == ids[: len(result.token_ids)]
        assert not engine.has_work
        return result.text.lstrip(), result.finish, deltas

    assert run(stop="stop h")[:2] == ("the fox 🙂 says: ", FinishReason.STOP)
    assert run(stop=["nothing", "🙂"])[:2] == ("the fox ", FinishReason.STOP)
    assert run(stop="says: stop!")[:2] == ("the fox 🙂 says: stop here. ", FinishReason.EOS)
    early = run(stop="fox", min_tokens=12)
    assert early[1] is FinishReason.EOS and "fox" in early[0]
    half = run(max_tokens=len(text.encode("the fox 🙂", add_special_tokens=False)) - 1)
    assert half[1] is FinishReason.LENGTH
    assert half[0].rstrip("\ufffd") == "the fox " and half[0].endswith("\ufffd")
    held = run(stop="here. X")[2]
    assert all("here" not in delta.text for delta in held[:-1] if "r" not in delta.text)


def test_text_prompts_and_token_only_results():
    text = Text(text_files(KINDS["byte_level"](), add_bos_token=True))
    engine = Engine(MockSession(vocab=text.vocab_size), text)
    results = engine.generate(["the fox", "hello"], SamplingParams(max_tokens=8))
    assert [list(r.prompt) for r in results] == [text.encode("the fox"), text.encode("hello")]
    assert [r.text for r in results] == [text.decode(r.token_ids) for r in results]
    plain = Engine(MockSession(vocab=text.vocab_size))
    tokens = plain.generate([r.prompt for r in results], SamplingParams(max_tokens=8))
    assert [r.token_ids for r in tokens] == [r.token_ids for r in results]
    assert {r.text for r in tokens} == {""}
