"""Definitions of constraints: which are refused and how, how they are kept, what they need."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import llguidance
import pytest
from constraint_rig import COMPILERS, SIZES, TOKENIZERS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from qeff.core.errors import OptionTypeError, RequestError, ResourceError, UsageError
from qeff.generate import constraint as module
from qeff.generate.constraint import Constraint, ConstraintCompiler, ConstraintKind

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
