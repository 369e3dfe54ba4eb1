"""Masks against a search through the vocabulary, and what else a matcher says of tokens."""

from __future__ import annotations

import numpy as np
import pytest
from constraint_rig import BYTES, CHOICES, COMPILERS, ENDS, SIZES, TOKENIZERS, allowed, walk
from tiny_tokenizers import KINDS
from tokenizers import AddedToken

from qeff.core.errors import RequestError
from qeff.generate.constraint import Constraint, ConstraintCompiler

FINITE = [  # a constraint and every text that fits it
    (Constraint.choice(CHOICES), CHOICES),
    (Constraint.regex("(a|the)(b|é)?( dog)?"), None),
    (Constraint.regex("^th(e|is)( the){0,2}$"), ["the", "this", "the the", "this the",
                                                 "the the the", "this the the"]),
    (Constraint.json_schema({"enum": ["the", 12, None, "é"]}), ['"the"', "12", "null", '"é"']),
    (Constraint.json_schema({"type": "integer", "minimum": -2, "maximum": 11}),
     [*map(str, range(-2, 12)), "-0"]),
    (Constraint.json_schema({"const": True}), ["true"]),
    (Constraint.grammar('start: a "-" a\na: "the" | "dog" | "t"'),
     [f"{x}-{y}" for x in ("the", "dog", "t") for y in ("the", "dog", "t")]),
    (Constraint.grammar('root ::= "(" in ")"\nin ::= [0-1] | "<s>"'), ["(0)", "(1)", "(<s>)"]),
]  # fmt: skip
FINITE[1] = (FINITE[1][0], [a + b + c for a in ("a", "the") for b in ("", "b", "é")
                            for c in ("", " dog")])  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", range(len(FINITE)))
def test_a_mask_is_what_a_search_through_the_vocabulary_finds(kind, index):
    constraint, language = FINITE[index]
    texts = [text.encode() for text in language]
    visited, waiting = set(), [((), b"", COMPILERS[kind].start(constraint))]
    while waiting:
        tokens, written, matcher = waiting.pop()
        fresh = COMPILERS[kind].start(constraint)  # never asked before
        for token in tokens:
            fresh.accept(token)
        assert fresh.forced() == matcher.forced()
        expected = {
            token
            for token, more in enumerate(BYTES[kind])
            if more and any(text.startswith(written + more) for text in texts)
        }
        is_whole = written in texts
        found, forced = allowed(matcher, kind), matcher.forced()
        assert allowed(fresh, kind) == found
        if forced:  # one text is left, and is to be written as the tokenizer would
            assert found == {forced[0]} <= expected
            assert matcher.allows(forced) == len(forced)
        else:
            assert found == expected | (set(ENDS[kind]) if is_whole else set()), written
        assert matcher.is_satisfied == is_whole
        assert matcher.is_finished == (not expected)
        assert {t for t in range(SIZES[kind]) if matcher.allows([t]) == 1} == found
        for token in expected:
            after = written + BYTES[kind][token]
            if after not in visited:
                visited.add(after)
                waiting.append(((*tokens, token), after, matcher.fork()))
                waiting[-1][2].accept(token)
    assert visited >= set(texts) - {b""}


def test_greedy_output_is_forced_where_one_text_is_left():
    tokenizer, end = TOKENIZERS["byte_level"], ENDS["byte_level"][0]
    matcher = walk("byte_level", Constraint.choice(["hello world", "hello there!"]), "hello")
    assert tokenizer.decode(matcher.forced()).strip() == ""  # " w" or " t": both are left
    matcher = walk("byte_level", Constraint.choice(["hello world", "hello there!"]), "hello th")
    rest = matcher.forced()
    assert tokenizer.decode(rest) == "ere!"
    assert matcher.allows([*rest, end]) == len(rest) + 1
    assert matcher.allows([*rest, rest[0]]) == len(rest)
    for token in rest:
        matcher.accept(token)
    assert matcher.is_finished
    assert matcher.forced() == []
    assert allowed(matcher, "byte_level") == set(ENDS["byte_level"])


def test_allows_counts_tokens_and_ends_and_changes_nothing():
    tokenizer, (end, other) = TOKENIZERS["byte_level"], ENDS["byte_level"]
    matcher = COMPILERS["byte_level"].start(Constraint.regex("a{1,3}"))
    a, b = tokenizer.token_to_id("a"), tokenizer.token_to_id("b")
    counts = {
        (): 0, (end,): 0, (b,): 0, (a,): 1, (a, b): 1, (a, end): 2, (a, a, a): 3,
        (a, a, a, a): 3, (a, other, end): 3, (a, end, a): 2, (a, a, a, end, b): 4,
    }  # fmt: skip
    for tokens, count in counts.items():
        assert matcher.allows(tokens) == count, tokens
    assert end not in allowed(matcher, "byte_level")
    matcher.accept(a)
    matcher.accept(end)
    assert matcher.allows([a]) == 0
    assert matcher.allows([end, a]) == 1
    assert allowed(matcher, "byte_level") == {end, other}


def test_a_fork_goes_its_own_way():
    tokenizer = TOKENIZERS["byte_level"]
    matcher = COMPILERS["byte_level"].start(Constraint.choice(["ab", "ac"]))
    matcher.accept(tokenizer.token_to_id("a"))
    fork = matcher.fork()
    fork.accept(tokenizer.token_to_id("b"))
    assert fork.is_finished
    assert not matcher.is_satisfied
    assert matcher.allows([tokenizer.token_to_id("c")]) == 1


def test_a_token_that_is_not_allowed_is_our_mistake():
    tokenizer, (end, _) = TOKENIZERS["byte_level"], ENDS["byte_level"]
    for token in (tokenizer.token_to_id("b"), tokenizer.token_to_id("<s>"), end):
        with pytest.raises(AssertionError, match=r"not allowed|before its constraint"):
            COMPILERS["byte_level"].start(Constraint.regex("a")).accept(token)


def test_ends_are_known_by_id_even_when_the_tokenizer_takes_them_for_text():
    tokenizer = KINDS["byte_level"]()
    tokenizer.add_tokens([AddedToken("<end>", normalized=False)])
    end = tokenizer.token_to_id("<end>")
    compiler = ConstraintCompiler(tokenizer, tokenizer.get_vocab_size(), [end])
    matcher = compiler.start(Constraint.regex("[<a-z>]+"))
    assert matcher.allows([end]) == 0
    a = tokenizer.token_to_id("a")
    assert not matcher.mask().view(np.uint32)[end // 32] >> (end % 32) & 1
    matcher.accept(a)
    assert matcher.allows([a, end]) == 2
    assert matcher.mask().view(np.uint32)[end // 32] >> (end % 32) & 1


def test_a_model_may_have_fewer_logits_than_its_tokenizer_has_tokens():
    tokenizer = TOKENIZERS["byte_level"]
    compiler = ConstraintCompiler(tokenizer, 300, ENDS["byte_level"])
    mask = compiler.start(Constraint.regex("[^ ]*")).mask()
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert mask.shape == (10,)
    assert bits[200:300].any()
    assert not bits[300:].any()
    few = ConstraintCompiler(tokenizer, 5, ENDS["byte_level"])  # only the special tokens
    with pytest.raises(RequestError, match="no token that goes on"):
        few.start(Constraint.regex("a"))
