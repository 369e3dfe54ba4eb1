"""Compare llguidance and xgrammar: python benchmarks/constraints.py tokenizer.json [--eos ID ...].

Walks real answers token by token under realistic definitions and measures importing, compiling and
masking; then asks both libraries about single JSON-schema features, where an answer is ``right``,
``refused`` (said before anything runs), ``strict`` (a valid text is not allowed) or ``loose`` (an
invalid text is). Prints two Markdown tables. Either library may be missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

NAME = {"type": "string", "minLength": 1, "maxLength": 40}
ADDRESS = {
    "type": "object",
    "properties": {
        "street": NAME,
        "city": NAME,
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "country": {"enum": ["DE", "FR", "JP", "US"]},
    },
    "required": ["street", "city", "zip", "country"],
    "additionalProperties": False,
}
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "at": {"type": "string", "format": "date-time"},
        "customer": {
            "type": "object",
            "properties": {"name": NAME, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
            "required": ["name"],
            "additionalProperties": False,
        },
        "ship_to": {"$ref": "#/$defs/address"},
        "items": {
            "type": "array",
            "minItems": 1,
            "maxItems": 20,
            "items": {
                "type": "object",
                "properties": {
                    "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
                    "count": {"type": "integer", "minimum": 1, "maximum": 99},
                    "price": {"type": "number", "minimum": 0},
                    "tags": {"type": "array", "items": {"enum": ["new", "sale", "gift"]}},
                },
                "required": ["sku", "count", "price"],
                "additionalProperties": False,
            },
        },
        "pay": {"anyOf": [{"const": "cash"}, {"type": "object", "properties": {"card": NAME}}]},
    },
    "required": ["id", "customer", "items", "pay"],
    "additionalProperties": False,
    "$defs": {"address": ADDRESS},
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
}
WIDE = {
    "type": "object",
    "properties": {f"field_{i}": {"type": ["string", "null"]} for i in range(60)},
    "required": [f"field_{i}" for i in range(0, 60, 2)],
    "additionalProperties": False,
}
ORDER_TEXT = {
    "id": "3f0c8a52-4b7e-4d0a-9d5f-0a1b2c3d4e5f",
    "at": "2024-05-17T09:30:00Z",
    "customer": {"name": "Ada Lovelace — “the first”", "age": 36},
    "ship_to": {
        "street": "12 St James's Square",
        "city": "London",
        "zip": "10117",
        "country": "DE",
    },
    "items": [
        {"sku": "ABC-1234", "count": 2, "price": 19.99, "tags": ["new", "gift"]},
        {"sku": "XYZ-9876", "count": 1, "price": 5},
    ],
    "pay": {"card": "visa ending 4242"},
}
LOG = r"\d{4}-\d{2}-\d{2} (INFO|WARN|ERROR) [a-z]+(\.[a-z]+)*: [^\n]{1,200}"
ARITHMETIC = (
    'root ::= sum\nsum ::= product (("+" | "-") product)*\n'
    'product ::= atom (("*" | "/") atom)*\natom ::= [0-9]+ | "(" sum ")"\n'
)
CITIES = [f"{name} {kind} {i}" for name in ("East", "Süd", "東") for kind in "AB" for i in range(9)]
TEXTS = [  # (name, kind, definition, text that fits it)
    ("order (nested schema)", "json_schema", ORDER, json.dumps(ORDER_TEXT, ensure_ascii=False)),
    (
        "tree (recursive schema)",
        "json_schema",
        TREE,
        '{"value": 1, "children": [{"value": 22, "children": []}, {"value": -3, "children": []}]}',
    ),
    (
        "60 fields (wide schema)",
        "json_schema",
        WIDE,
        json.dumps({f"field_{i}": "some words" for i in range(60)}),
    ),
    ("any object", "json_schema", {"type": "object"}, json.dumps(ORDER_TEXT, ensure_ascii=False)),
    ("log line (regex)", "regex", LOG, "2024-05-17 WARN net.http: retry after 3 s, host is slow"),
    ("arithmetic (GBNF)", "grammar", ARITHMETIC, "(12+3)*(4-(5/6))+789*2"),
    ("54 strings (choice)", "choice", CITIES, CITIES[-1]),
]
FEATURES = [  # (keyword, schema, texts that are valid, texts that are not)
    ("enum, const", {"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"', "2"]),
    ("minimum, maximum", {"type": "integer", "minimum": -5, "maximum": 117}, ["-5", "99", "117"],
     ["-6", "118", "1000"]),
    ("exclusiveMinimum (number)", {"type": "number", "exclusiveMinimum": 0.5}, ["0.51", "7"],
     ["0.5", "-1", "0.05"]),
    ("multipleOf", {"type": "integer", "multipleOf": 5}, ["10", "0"], ["7", "11"]),
    ("minLength, maxLength", {"type": "string", "minLength": 2, "maxLength": 3}, ['"é日"', '"abc"'],
     ['"a"', '"abcd"']),
    ("pattern", {"type": "string", "pattern": "^[a-c]+$"}, ['"abc"'], ['"abd"', '""']),
    ("pattern, not anchored", {"type": "string", "pattern": "b"}, ['"abc"'], ['"ac"']),
    ("format date", {"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"']),
    ("format ipv4", {"type": "string", "format": "ipv4"}, ['"10.0.0.255"'], ['"10.0.0.256"']),
    ("minItems, maxItems", {"type": "array", "items": {"type": "integer"}, "minItems": 1,
                            "maxItems": 2}, ["[1]", "[1, 2]"], ["[]", "[1, 2, 3]"]),
    ("prefixItems", {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}],
                     "items": False, "minItems": 2}, ['[1, "a"]'], ['["a", 1]', '[1, "a", 2]']),
    ("uniqueItems", {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, ["[1, 2]"],
     ["[1, 1]"]),
    ("anyOf", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"a"'], ["null", "1.5"]),
    ("oneOf, overlapping", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["1.5"], ["1"]),
    ("allOf", {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, ["3", "5"],
     ["2", "6"]),
    ("not", {"not": {"type": "string"}}, ["1"], ['"a"']),
    ("if, then", {"type": "object", "properties": {"a": {"type": "integer"}},
                  "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}},
     ['{"a": 2}'], ['{"a": 1}']),
    ("required", {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"],
                  "additionalProperties": False}, ['{"b": 1}', '{"a": 1, "b": 2}'],
     ["{}", '{"a": 1}', '{"b": 1, "c": 2}']),
    ("additionalProperties schema", {"type": "object", "additionalProperties": {"type": "integer"}},
     ['{"x": 1}'], ['{"x": "a"}']),
    ("patternProperties", {"type": "object", "patternProperties": {"^n_": {"type": "integer"}},
                           "additionalProperties": False}, ['{"n_a": 1}'],
     ['{"n_a": "x"}', '{"m": 1}']),
    ("minProperties", {"type": "object", "minProperties": 1}, ['{"a": 1}'], ["{}"]),
    ("dependentRequired", {"type": "object", "properties": {"a": {}, "b": {}},
                           "dependentRequired": {"a": ["b"]}}, ['{"a": 1, "b": 1}'], ['{"a": 1}']),
    ("$ref, recursive", TREE, ['{"value": 1, "children": [{"value": 2, "children": []}]}'],
     ['{"value": 1, "children": [1]}']),
]  # fmt: skip


class Llguidance:
    """llguidance: the matcher compiles; a copy of it starts a request."""

    module = "llguidance"

    def __init__(self, tokenizer: Tokenizer, eos_ids: list[int]) -> None:
        import llguidance

        self.library = llguidance
        self.tokenizer = llguidance.LLTokenizer(tokenizer.to_str(), eos_token=eos_ids)

    def compile(self, kind: str, definition: object) -> object:
        text = definition if isinstance(definition, str) else json.dumps(definition)
        grammar = self.library.grammar_from(kind, text)
        matcher = self.library.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def start(self, compiled):
        matcher = compiled.deep_copy()
        return matcher.compute_bitmask, matcher.consume_token


class Xgrammar:
    """xgrammar: a compiler with its own cache, and a matcher for each request."""

    module = "xgrammar"

    def __init__(self, tokenizer: Tokenizer, eos_ids: list[int]) -> None:
        import torch
        import xgrammar

        torch.set_num_threads(1)
        self.library, self.eos_ids = xgrammar, eos_ids
        size = tokenizer.get_vocab_size()
        meta = xgrammar.TokenizerInfo._detect_metadata_from_hf(tokenizer.to_str())
        self.tokenizer = xgrammar.TokenizerInfo(
            [tokenizer.id_to_token(i) or "" for i in range(size)],
            meta["vocab_type"],
            stop_token_ids=eos_ids,
            add_prefix_space=meta["add_prefix_space"],
        )
        self.words = (size + 31) // 32

    def compile(self, kind: str, definition: object) -> object:
        compiler = self.library.GrammarCompiler(self.tokenizer, max_threads=1, cache_enabled=False)
        if kind == "json_schema":
            return compiler.compile_json_schema(json.dumps(definition), strict_mode=False)
        if kind == "regex":
            return compiler.compile_regex(definition)
        if kind == "choice":
            # JSON's escapes are those of its grammars.
            definition = "root ::= " + " | ".join(json.dumps(text) for text in definition)
        return compiler.compile_grammar(definition)

    def start(self, compiled):
        matcher = self.library.GrammarMatcher(compiled)
        bits = np.zeros((1, self.words), np.int32)

        def mask():
            matcher.fill_next_token_bitmask(bits)
            return bits

        return mask, matcher.accept_token


def walk(library, compiled, ids: list[int]) -> tuple[bool, list[float]]:
    """Whether the ids are allowed one after another, and the seconds of each mask."""
    mask, accept = library.start(compiled)
    seconds = []
    for token in ids:
        begun = time.perf_counter()
        words = np.frombuffer(bytes(mask()), np.int32)
        seconds.append(time.perf_counter() - begun)
        if not words[token // 32] >> (token % 32) & 1 or not accept(token):
            return False, seconds
    return True, seconds


def import_seconds(module: str) -> float:
    """Seconds that importing takes in a process of its own, numpy already there."""
    program = f"import numpy, time; t = time.perf_counter(); import {module}; " \
        "print(time.perf_counter() - t)"  # fmt: skip
    times = [subprocess.check_output([sys.executable, "-c", program]) for _ in range(3)]
    return min(map(float, times))


def measure(library, tokenizer: Tokenizer, eos_id: int) -> list[tuple[str, str]]:
    """The speed of one library: (what, how long)."""
    rows = []
    for name, kind, definition, text in TEXTS:
        ids = [*tokenizer.encode(text, add_special_tokens=False).ids, eos_id]
        begun = time.perf_counter()
        compiled = library.compile(kind, definition)
        compiling = time.perf_counter() - begun
        is_allowed, seconds = walk(library, compiled, ids)
        for _ in range(9):
            seconds += walk(library, compiled, ids)[1]
        middle, high = np.percentile(seconds, [50, 99]) * 1e6
        note = "" if is_allowed else " (text not allowed)"
        rows.append((name, f"{compiling * 1e3:.1f} ms, {middle:.0f} / {high:.0f} µs{note}"))
    return rows


def judge(library, tokenizer: Tokenizer, eos_id: int, feature) -> str:
    """One word for how a library treats a keyword."""
    _, schema, valid, invalid = feature
    try:
        compiled = library.compile("json_schema", schema)
    except (ValueError, RuntimeError):
        return "refused"

    def allows(text: str) -> bool:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return walk(library, compiled, [*ids, eos_id])[0]

    found = {"strict": not all(map(allows, valid)), "loose": any(map(allows, invalid))}
    return " and ".join(word for word, is_so in found.items() if is_so) or "right"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--eos", type=int, nargs="+", default=[2])
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    libraries, columns = [], []
    for kind in (Llguidance, Xgrammar):
        importing = import_seconds(kind.module)
        import_module(kind.module)
        begun = time.perf_counter()
        library = kind(tokenizer, args.eos)
        preparing = time.perf_counter() - begun
        libraries.append(library)
        columns.append(
            [
                ("import", f"{importing * 1e3:.0f} ms"),
                ("tokenizer, once", f"{preparing * 1e3:.0f} ms"),
                *measure(library, tokenizer, args.eos[0]),
            ]
        )
    names = [library.module for library in libraries]
    print(f"| compiling, then a mask (p50 / p99) | {' | '.join(names)} |\n| --- | --- | --- |")
    for cells in zip(*columns, strict=True):
        print(f"| {cells[0][0]} | {' | '.join(cell for _, cell in cells)} |")
    print(f"\n| JSON-schema keyword | {' | '.join(names)} |\n| --- | --- | --- |")
    for feature in FEATURES:
        words = [judge(library, tokenizer, args.eos[0], feature) for library in libraries]
        print(f"| {feature[0]} | {' | '.join(words)} |")


if __name__ == "__main__":
    main()
