"""Which features are tested together: rows in which every pair of their values occurs.

``ROWS`` is the covering array, ``RULES`` say what cannot be together and why. The rows that run on
any machine hold all pairs that need no GPU; the rows of each target that needs one follow, and hold
all pairs on that target. A row is one test of ``test_matrix.py``; ``docs/make_matrix.py`` prints
the array. Knows nothing of how a row is run.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import combinations, product

from allpairspy import AllPairs

FACTORS: OrderedDict[str, tuple[str, ...]] = OrderedDict(
    target=("cpu", "ort", "reference", "cuda"),
    precision=("fp32", "int8", "int4", "mxfp6"),
    kv=("auto", "fp32", "fp16", "mxint8"),
    batching=("one", "plain", "continuous"),
    chunk=("1", "7", "whole"),
    reuse=("on", "off"),
    speculation=("none", "prompt_lookup", "lookahead", "draft", "heads"),
    constraint=("none", "json", "regex", "choice"),
    sampling=("greedy", "sampled", "penalties", "n=2", "beam"),
    stop=("none", "strings"),
    cancel=("none", "queued", "decoding"),
)
NEEDS_GPU = ("cuda",)  # targets whose rows run on a machine with a GPU alone
PACKED = ("int8", "int4", "mxfp6")


@dataclass(frozen=True)
class Rule:
    """Values of several factors that exclude each other."""

    parts: tuple[tuple[str, tuple[str, ...]], ...]
    reason: str

    def forbids(self, row: dict[str, str]) -> bool:
        return all(row.get(name) in values for name, values in self.parts)


def _rule(reason: str, **parts: tuple[str, ...]) -> Rule:
    return Rule(tuple(parts.items()), reason)


RULES = (
    _rule("the reference engine computes in fp32 only", target=("reference",), precision=PACKED),
    _rule(
        "the reference engine keeps its cache in fp32",
        target=("reference",),
        kv=("fp16", "mxint8"),
    ),
    _rule("ONNX Runtime has no MXINT8", target=("ort",), kv=("mxint8",)),
    _rule(
        "ONNX Runtime runs no trees of tokens, which lookahead decoding needs",
        target=("ort",),
        speculation=("lookahead",),
    ),
    _rule(
        "a cache of fp16 belongs to weights of fp16 there, which are no value here",
        target=("cuda",),
        kv=("fp16",),
    ),
    _rule(
        "beside packed weights the cuda target computes in bf16, and `auto` is a cache of it",
        target=("cuda",),
        precision=PACKED,
        kv=("fp32",),
    ),
)
Pair = tuple[tuple[str, str], tuple[str, str]]


def is_possible(row: dict[str, str]) -> bool:
    """Whether no rule forbids this row, or what there is of it."""
    return not any(rule.forbids(row) for rule in RULES)


def pairs_of(row: dict[str, str]) -> set[Pair]:
    """All pairs of values that a row holds."""
    return set(combinations(row.items(), 2))


def possible_pairs(targets: tuple[str, ...] = FACTORS["target"]) -> set[Pair]:
    """All pairs that some whole row on these targets can hold; rules alone can prevent it."""
    factors = FACTORS | {"target": targets}
    named = {name for rule in RULES for name, _ in rule.parts}
    found: set[Pair] = set()
    for (a, first), (b, second) in combinations(factors.items(), 2):
        others = [name for name in factors if name in named - {a, b}]
        for pair in product(first, second):
            start = {a: pair[0], b: pair[1]}
            rest = product(*(factors[name] for name in others))
            if any(is_possible(start | dict(zip(others, more, strict=True))) for more in rest):
                found.add(((a, pair[0]), (b, pair[1])))
    return found


def _make_rows(targets: tuple[str, ...]) -> list[dict[str, str]]:
    """Rows that hold every pair that is possible on these targets."""
    factors = FACTORS | {"target": targets}
    names = list(factors)
    made = AllPairs(
        list(factors.values()),
        filter_func=lambda values: is_possible(dict(zip(names, values, strict=False))),
    )
    rows = [dict(zip(names, row, strict=True)) for row in made]
    # The generator gives up where rules leave it no way on; the pairs that it left get rows, too.
    missing = possible_pairs(targets).difference(*map(pairs_of, rows))
    while missing:
        rows.append(_row_around(min(missing), missing, targets))
        missing -= pairs_of(rows[-1])
    return rows


def _row_around(pair: Pair, missing: set[Pair], targets: tuple[str, ...]) -> dict[str, str]:
    """A whole row with this pair and, as far as that goes, many more of the missing ones."""
    row, factors = dict(pair), FACTORS | {"target": targets}
    ruled = {name for rule in RULES for name, _ in rule.parts}
    for name in sorted(factors, key=lambda name: name not in ruled):
        if name in row:
            continue
        choices = [
            row | {name: value} for value in factors[name] if is_possible(row | {name: value})
        ]
        row = max(choices, key=lambda choice: len(missing & _ordered_pairs(choice)))
    return {name: row[name] for name in factors}


def _ordered_pairs(row: dict[str, str]) -> set[Pair]:
    return pairs_of({name: row[name] for name in FACTORS if name in row})


EVERYWHERE = tuple(target for target in FACTORS["target"] if target not in NEEDS_GPU)
ROWS = tuple(
    row for targets in (EVERYWHERE, *((name,) for name in NEEDS_GPU)) for row in _make_rows(targets)
)
