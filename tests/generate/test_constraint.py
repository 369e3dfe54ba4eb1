"""Constrained output against validators, and masks against a search through the vocabulary."""

from __future__ import annotations

import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import llguidance
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import KINDS
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from qeff.core.errors import OptionTypeError, RequestError, ResourceError, UsageError
from qeff.generate import constraint as module
from qeff.generate.constraint import Constraint, ConstraintCompiler, ConstraintKind, Matcher

TOKENIZERS = {kind: make() for kind, make in KINDS.items()}
EXTRA = 7  # logits that stand for no token, as in padded models
ENDS = {
    kind: [tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<|im_end|>")]
    for kind, tokenizer in TOKENIZERS.items()
}
SIZES = {kind: tokenizer.get_vocab_size() + EXTRA for kind, tokenizer in TOKENIZERS.items()}
COMPILERS = {
    kind: ConstraintCompiler(tokenizer, SIZES[kind], ENDS[kind])
    for kind, tokenizer in TOKENIZERS.items()
}


def gpt2_bytes() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [byte for byte in range(256) if byte not in kept]
    return {chr(b): b for b in kept} | {chr(256 + i): b for i, b in enumerate(shifted)}


def token_bytes(kind: str) -> list[bytes | None]:
    """What each token writes; None for special tokens and for ids that are no token."""
    tokenizer, found = TOKENIZERS[kind], []
    special = tokenizer.get_added_tokens_decoder()
    for index in range(SIZES[kind]):
        name = tokenizer.id_to_token(index)
        if name is None or index in special:
            found.append(None)
        elif kind == "byte_level":
            found.append(bytes(gpt2_bytes()[c] for c in name))
        elif re.fullmatch("<0x..>", name):
            found.append(bytes([int(name[3:5], 16)]))
        else:
            found.append(name.replace("▁", " ").encode())
    return found


BYTES = {kind: token_bytes(kind) for kind in KINDS}


def allowed(matcher: Matcher, kind: str) -> set[int]:
    mask = matcher.mask()
    assert mask.dtype == np.int32
    assert mask.shape == ((SIZES[kind] + 31) // 32,)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[SIZES[kind] :].any()
    return set(np.flatnonzero(bits).tolist())


def generate(constraint: Constraint, kind: str, rng: np.random.Generator, limit=2000) -> str:
    """What a model of random logits writes; it wants to end ever more."""
    matcher, written = COMPILERS[kind].start(constraint), b""
    closing = [i for i, text in enumerate(BYTES[kind]) if text in (b'"', b"}", b"]")]
    for step in range(limit):
        logits = rng.normal(size=SIZES[kind])
        logits[[*closing, *ENDS[kind]]] += step / 20
        may_come = allowed(matcher, kind)
        refused = [token for token in range(SIZES[kind]) if token not in may_come]
        logits[refused] = -np.inf
        token = int(logits.argmax())
        assert matcher.allows([token]) == 1
        matcher.accept(token)
        if token in ENDS[kind]:
            assert matcher.is_finished
            return written.decode()
        written += BYTES[kind][token]
    raise AssertionError(f"no end after {written!r}")


NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": -5, "maximum": 117},
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "kind": {"enum": ["ä", None, 3]},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
    },
    "required": ["value", "children"],
    "additionalProperties": False,
}
SCHEMAS = [
    {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0.5}, "minItems": 1},
    {"anyOf": [{"type": "string", "format": "date"}, {"type": "boolean"}, {"const": {"a": []}}]},
    {
        "type": "object",
        "patternProperties": {"^n_[a-z]+$": {"type": "integer", "multipleOf": 5}},
        "additionalProperties": False,
        "minProperties": 1,
    },
]
PATTERNS = [
    r"[0-9]{4}-[0-9]{2}-[0-9]{2} (INFO|WARN) [a-z]{1,9}(\.[a-z]{1,9}){0,3}",
    "[^é]{0,12}é日?",
    "(the|hello| world){2,5}",
    "a*",
]
CHOICES = ["yes", "no", "yes, the", "", 'a"b\\', "naïve 🙂\n\t\x01", "日本"]
ARITHMETIC = 'root ::= atom ([+*] atom)?\natom ::= [0-9] | "(" root ")" | "-" atom'
LARK = 'start: "[" (pair ("," pair)*)? "]"\npair: WORD "=" /[0-9]{1,3}/\nWORD: /(the|dog)+/'


def fits_arithmetic(text: str) -> bool:
    assert re.fullmatch(r"[0-9()+*-]+", text)
    return isinstance(eval(re.sub(r"0+(?=\d)", "", text), {}), int)  # only digits and operators


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", range(len(SCHEMAS)))
def test_random_models_write_valid_json(kind, index):
    rng, schema = np.random.default_rng(index), SCHEMAS[index]
    checker = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for _ in range(40):
        checker.validate(json.loads(generate(Constraint.json_schema(schema), kind, rng)))


@pytest.mark.parametrize("kind", KINDS)
def test_random_models_write_objects(kind):
    rng = np.random.default_rng(0)
    for _ in range(150):
        assert isinstance(json.loads(generate(Constraint.json_object(), kind, rng)), dict)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_random_models_match_patterns(kind, pattern):
    rng = np.random.default_rng(0)
    for _ in range(40):
        assert re.fullmatch(pattern, generate(Constraint.regex(pattern), kind, rng))


@pytest.mark.parametrize("kind", KINDS)
def test_random_models_choose_what_is_offered(kind):
    rng = np.random.default_rng(0)
    written = {generate(Constraint.choice(CHOICES), kind, rng) for _ in range(150)}
    assert written <= set(CHOICES)
    assert len(written) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_random_models_follow_grammars(kind):
    rng = np.random.default_rng(0)
    for _ in range(75):
        text = generate(Constraint.grammar(LARK), kind, rng)
        assert re.fullmatch(r"\[(((the|dog)+=\d{1,3})(,(the|dog)+=\d{1,3})*)?\]", text)
    for _ in range(75):
        assert fits_arithmetic(generate(Constraint.grammar(ARITHMETIC), kind, rng))


SCHEMA_PARTS = st.recursive(
    st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.lists(st.sampled_from(["a", "ä", 1, None, True]), min_size=1, max_size=3, unique_by=str)
        .map(lambda values: {"enum": values}),
        st.tuples(st.integers(-200, 200), st.integers(0, 300)).map(
            lambda pair: {"type": "integer", "minimum": pair[0], "maximum": sum(pair)}
        ),
        st.tuples(st.integers(0, 3), st.integers(0, 5)).map(
            lambda pair: {"type": "string", "minLength": pair[0], "maxLength": sum(pair)}
        ),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
            lambda t: {"type": "array", "items": t[0], "minItems": t[1], "maxItems": t[1] + t[2]}
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts}),
        st.tuples(
            st.dictionaries(st.sampled_from(["a", "the", "ключ", 'q"']), inner, max_size=3),
            st.booleans(),
        ).map(
            lambda t: {
                "type": "object",
                "properties": t[0],
                "required": sorted(t[0])[: 1 + len(t[0]) // 2],
                "additionalProperties": False if t[1] else {"type": "null"},
            }
        ),
    ),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(SCHEMA_PARTS, st.sampled_from(sorted(KINDS)), st.integers(0, 99))
def test_random_schemas_are_kept(schema, kind, seed):
    text = generate(Constraint.json_schema(schema), kind, np.random.default_rng(seed))
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


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


def walk(kind: str, constraint: Constraint, text: str) -> Matcher:
    matcher = COMPILERS[kind].start(constraint)
    for token in TOKENIZERS[kind].encode(text, add_special_tokens=False).ids:
        matcher.accept(token)
    return matcher


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


HOSTILE = {
    "huge regex": Constraint.regex("(a{1000}){1000}"),
    "nested repeats": Constraint.regex("((a{100}){100}){100}"),
    "exponential": Constraint.regex("(a|b)*a(a|b){20}"),
    "many words": Constraint.regex("|".join(f"w{i}x{i * 7919 % 1000}" for i in range(20000))),
    "parentheses": Constraint.regex("(" * 100_000 + "a" + ")" * 100_000),
    "long": Constraint.regex("a" * (module.MAX_DEFINITION + 1)),
    "deep schema": Constraint.json_schema('{"items":' * 5000 + "{}" + "}" * 5000),
    "deep brackets": Constraint.json_schema("[" * 1_000_000),
    "large enum": Constraint.json_schema({"enum": [f"v{i}" for i in range(40_000)]}),
    "product of unions": Constraint.json_schema(
        {
            "allOf": [
                {"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)
            ]
        }
    ),
    "long array": Constraint.json_schema({"type": "array", "minItems": 1_000_000}),
    "large factor": Constraint.json_schema({"type": "integer", "multipleOf": 999_999_937}),
    "endless object": Constraint.json_schema(
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    ),
    "deep Lark": Constraint.grammar("start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "deep GBNF": Constraint.grammar("root ::= " + "(" * 5000 + '"a"' + ")" * 5000),
    "2**60 characters": Constraint.grammar(
        "start: r0\n" + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(60)) + 'r60: "a"'
    ),
    "ambiguous": Constraint.grammar('start: start start | "a"'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_definitions_are_answered_quickly(name):
    compiler = ConstraintCompiler(TOKENIZERS["byte_level"], SIZES["byte_level"], [1])
    a = TOKENIZERS["byte_level"].token_to_id("a")
    begun = time.process_time()
    try:
        matcher = compiler.start(HOSTILE[name])
        for _ in range(20):
            if matcher.allows([a]):
                matcher.accept(a)
            matcher.mask()
    except RequestError as error:
        assert len(error.what) < 400
        assert "\n" not in error.what
    assert time.process_time() - begun < 10  # a second or less as a rule


BAD = {
    "unclosed group": Constraint.regex("(a"),
    "look-around": Constraint.regex("(?=a)b"),
    "backreferences": Constraint.regex(r"(a)\1"),
    "no text that fits": Constraint.regex(r"[^\s\S]"),
    "surrogates": Constraint.regex("\ud800"),
    "line 1 column 2": Constraint.json_schema("{"),
    "Invalid type: strin": Constraint.json_schema({"type": "strin"}),
    "uniqueItems": Constraint.json_schema(
        {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    ),
    "minimum (5)": Constraint.json_schema({"type": "integer", "minimum": 5, "maximum": 3}),
    "Unknown format": Constraint.json_schema({"type": "string", "format": "nope"}),
    "no object": Constraint.json_schema("[]"),
    "no object but 'false'": Constraint.json_schema(False),
    "not present in a registry": Constraint.json_schema({"$ref": "http://example.com/x"}),
    "nested too deeply": Constraint.json_schema("[" * 1_000_000),
    "unknown name": Constraint.grammar("start: foo"),
    "Unexpected end of input": Constraint.grammar('root ::= "a'),
    "No 'root' rule": Constraint.grammar(""),
    "list of strings is empty": Constraint.choice([]),
    "no list of strings": Constraint(ConstraintKind.CHOICE, '{"a": 1}'),
    "not a Unicode scalar value": Constraint.choice(["\ud800"]),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_definitions_are_refused_in_one_sentence(message):
    with pytest.raises(RequestError, match="cannot be used") as caught:
        COMPILERS["byte_level"].start(BAD[message])
    assert message in caught.value.what
    assert "\n" not in caught.value.what


def test_the_empty_schema_is_any_json():
    for schema in (True, {}, "true"):
        matcher = COMPILERS["byte_level"].start(Constraint.json_schema(schema))
        for first in '{["1tfn-':
            assert matcher.allows([TOKENIZERS["byte_level"].token_to_id(first)]) == 1


def test_json_may_be_neat_but_not_idle():
    kind, constraint = "byte_level", Constraint.json_object()
    tokenizer = TOKENIZERS[kind]
    assert walk(kind, constraint, '{\n  "a": [\n\t1,\n\t2\n  ]\n}').is_satisfied
    assert walk(kind, constraint, '{"a":[1,2]}').is_finished
    assert walk(kind, constraint, "{ ").allows(tokenizer.encode(" ").ids) == 0
    assert walk(kind, constraint, "{\n").allows(tokenizer.encode("\n").ids) == 0
    compact = {"type": "object", "x-guidance": {"whitespace_flexible": False}}
    matcher = walk(kind, Constraint.json_schema(compact), "{")
    assert matcher.allows(tokenizer.encode(" ").ids) == 0


def test_a_grammar_that_becomes_too_complex_ends_the_request(monkeypatch):
    limits = llguidance.LLParserLimits(step_max_items=20, verbose_errors=False)
    monkeypatch.setattr(llguidance, "LLParserLimits", lambda **_: limits)
    tokenizer = TOKENIZERS["byte_level"]
    compiler = ConstraintCompiler(tokenizer, SIZES["byte_level"], [1])
    matcher = compiler.start(Constraint.grammar('start: start start | "a" | "aa" | "b" start "b"'))
    with pytest.raises(RequestError, match=r"cannot be followed.*Too many items"):
        for _ in range(40):
            matcher.accept(tokenizer.token_to_id("a"))
            matcher.mask()


def test_definitions_are_compiled_once_and_forgotten_in_order(monkeypatch):
    compiled = []
    make = ConstraintCompiler._compile
    monkeypatch.setattr(
        ConstraintCompiler, "_compile", lambda self, c: (compiled.append(c), make(self, c))[1]
    )
    monkeypatch.setattr(module, "MAX_CACHED", 2)
    compiler = ConstraintCompiler(TOKENIZERS["byte_level"], SIZES["byte_level"], [1])
    one, two, three = (Constraint.regex(text) for text in "abc")
    for constraint in (one, two, one, three, one, two):
        compiler.start(constraint)
    assert compiled == [one, two, three, two]


def test_many_threads_may_start_matchers():
    compiler = ConstraintCompiler(TOKENIZERS["byte_level"], SIZES["byte_level"], [1])
    wanted = [Constraint.regex(f"a{{{i % 5 + 1}}}") for i in range(40)]
    a = TOKENIZERS["byte_level"].token_to_id("a")
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda c: compiler.start(c).allows([a] * 9), wanted))
    assert counts == [i % 5 + 1 for i in range(40)]


def test_constraints_are_values():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert Constraint.json_schema(schema) == Constraint.json_schema(json.loads(json.dumps(schema)))
    assert len({Constraint.regex("a"), Constraint.regex("a"), Constraint.grammar("a")}) == 2
    assert Constraint.json_schema(schema).definition.index("b") < 50  # the order counts
    assert Constraint.json_object().kind is ConstraintKind.JSON_OBJECT
    assert Constraint("regex", "a") == Constraint.regex("a")
    with pytest.raises(UsageError, match="unknown kind of constraint 'regexp'") as caught:
        Constraint("regexp", "a")
    assert caught.value.hint == "did you mean 'regex'?"
    with pytest.raises(OptionTypeError, match="must be text"):
        Constraint.regex(3)
    with pytest.raises(OptionTypeError, match="list of strings"):
        Constraint.choice("yes")
    with pytest.raises(OptionTypeError, match="list of strings"):
        Constraint.choice(["yes", 3])
    with pytest.raises(RequestError, match="JSON schema cannot be used"):
        Constraint.json_schema({"enum": [object()]})


def test_a_missing_library_is_said_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    compiler = ConstraintCompiler(TOKENIZERS["byte_level"], SIZES["byte_level"], [1])
    with pytest.raises(ResourceError, match="llguidance") as caught:
        compiler.start(Constraint.regex("a"))
    assert caught.value.hint == "pip install 'qeff[constraints]'"


def test_tokenizers_without_bytes_and_models_without_an_end_are_refused():
    words = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁the", -2.0), ("</s>", -3.0)], 0, False))
    words.pre_tokenizer, words.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    with pytest.raises(RequestError, match="this tokenizer"):
        ConstraintCompiler(words, 3, [2]).start(Constraint.regex("a"))
    with pytest.raises(RequestError, match="no token that ends a text"):
        ConstraintCompiler(TOKENIZERS["byte_level"], 330, []).start(Constraint.regex("a"))
