"""Constrained output of random models against validators, for each kind of constraint."""

from __future__ import annotations

import json
import re

import jsonschema
import numpy as np
import pytest
from constraint_rig import CHOICES, COMPILERS, TOKENIZERS, generate, walk
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import KINDS

from qeff.generate.constraint import Constraint

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
