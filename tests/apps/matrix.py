"""Which features are tested together: rows in which every pair of their values occurs.

``ROWS`` is the covering array, ``RULES`` say which pairs cannot be and why. A row is one test of
``test_matrix.py``; ``docs/make_matrix.py`` prints the array. Knows nothing of how a row is run.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import combinations, product

from allpairspy import AllPairs

FACTORS: OrderedDict[str, tuple[str, ...]] = OrderedDict(
    target=("cpu", "ort", "reference"),
    precision=("fp32", "int8", "int4", "mxfp6"),
    kv=("fp32", "fp16", "mxint8"),
    batching=("one", "plain", "continuous"),
    chunk=("1", "7", "whole"),
    reuse=("on", "off"),
    speculation=("none", "prompt_lookup", "lookahead", "draft"),
    constraint=("none", "json", "regex", "choice"),
    sampling=("greedy", "sampled", "penalties", "n=2", "beam"),
    stop=("none", "strings"),
    cancel=("none", "queued", "decoding"),
)


@dataclass(frozen=True)
class Rule:
    """Values of two factors that exclude each other."""

    first: tuple[str, tuple[str, ...]]
    second: tuple[str, tuple[str, ...]]
    reason: str

    def forbids(self, row: dict[str, str]) -> bool:
        return all(row.get(name) in values for name, values in (self.first, self.second))


RULES = (
    Rule(
        ("target", ("reference",)),
        ("precision", ("int8", "int4", "mxfp6")),
        "the reference engine computes in fp32 only",
    ),
    Rule(
        ("target", ("reference",)),
        ("kv", ("fp16", "mxint8")),
        "the reference engine keeps its cache in fp32",
    ),
    Rule(("target", ("ort",)), ("kv", ("mxint8",)), "ONNX Runtime has no MXINT8"),
    Rule(
        ("target", ("ort",)),
        ("speculation", ("lookahead",)),
        "ONNX Runtime runs no trees of tokens, which lookahead decoding needs",
    ),
)
Pair = tuple[tuple[str, str], tuple[str, str]]


def is_possible(row: dict[str, str]) -> bool:
    """Whether no rule forbids this row, or what there is of it."""
    return not any(rule.forbids(row) for rule in RULES)


def pairs_of(row: dict[str, str]) -> set[Pair]:
    """All pairs of values that a row holds."""
    return set(combinations(row.items(), 2))


def possible_pairs() -> set[Pair]:
    """All pairs that some whole row can hold; only factors that a rule names can prevent it."""
    named = {name for rule in RULES for name, _ in (rule.first, rule.second)}
    found: set[Pair] = set()
    for (a, first), (b, second) in combinations(FACTORS.items(), 2):
        others = [name for name in FACTORS if name in named - {a, b}]
        for pair in product(first, second):
            start = {a: pair[0], b: pair[1]}
            rest = product(*(FACTORS[name] for name in others))
            if any(is_possible(start | dict(zip(others, more, strict=True))) for more in rest):
                found.add(((a, pair[0]), (b, pair[1])))
    return found


def _make_rows() -> tuple[dict[str, str], ...]:
    names = list(FACTORS)
    made = AllPairs(
        list(FACTORS.values()),
        filter_func=lambda values: is_possible(dict(zip(names, values, strict=False))),
    )
    rows = [dict(zip(names, row, strict=True)) for row in made]
    # The generator gives up where rules leave it no way on; the pairs that it left get rows, too.
    missing = possible_pairs().difference(*map(pairs_of, rows))
    while missing:
        rows.append(_row_around(min(missing), missing))
        missing -= pairs_of(rows[-1])
    return tuple(rows)


def _row_around(pair: Pair, missing: set[Pair]) -> dict[str, str]:
    """A whole row with this pair and, as far as that goes, many more of the missing ones."""
    row = dict(pair)
    for name in sorted(FACTORS, key=lambda name: name not in ("target", "speculation")):
        if name in row:
            continue
        choices = [
            row | {name: value} for value in FACTORS[name] if is_possible(row | {name: value})
        ]
        row = max(choices, key=lambda choice: len(missing & _ordered_pairs(choice)))
    return {name: row[name] for name in FACTORS}


def _ordered_pairs(row: dict[str, str]) -> set[Pair]:
    return pairs_of({name: row[name] for name in FACTORS if name in row})


ROWS = _make_rows()
