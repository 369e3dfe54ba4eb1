"""Run the covering array of features and write it as docs/matrix.md.

Every row is a test of tests/apps/test_matrix.py; nothing is written unless all pass that this
machine can run. A test checks that what is written is what this would write.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "apps"

HEAD = """# Every feature with every other one

Made by `docs/make_matrix.py`, which first runs all rows that the machine can run, and writes
nothing unless they pass.

Each row below compiles a tiny model as it says and runs four requests that begin alike through one
engine, with arrivals at different steps; `tests/apps/test_matrix.py` compares every request with
the same one alone on the same container: whole prompts, nothing reused, nothing guessed. With
`heads` the model brings two untrained heads that guess ahead, and `kv` of `auto` is the cache that
the target has by itself.

Rows of `cpu`, `reference` and `ort` run everywhere. Rows of `cuda` need a machine with an NVIDIA
GPU (`pytest -m cuda`) and are skipped elsewhere. A request beside others is, against the same
alone,

- on `cpu` equal bit for bit, log-probabilities included;
- on `cuda`, opened with `--deterministic`, the same; with `lookahead` equal in all tokens (the sums
  of a tree have another order);
- on `reference` equal in all tokens (its sums are numpy's, which depend on the shape of a call in
  the last bits);
- on `ort` equal in greedy tokens, as long as the likeliest one leads by 0.02 of log-probability
  (1.0 with a cache of halves); each row is run greedily once more for this.

Whatever the tokens are, an output must be what it must be: streams without a lost or doubled token,
the constraint followed, no stop string in the text, no leaked cache block.

The rows that run everywhere hold every possible pair that needs no GPU; the rows of `cuda` hold
every pair that is possible there, those with the target and all others.
"""


def load() -> ModuleType:
    """The module that holds the array."""
    sys.path.insert(0, str(TESTS))
    import matrix

    return matrix


def render(matrix: ModuleType) -> str:
    """The document: what cannot be, the rows, and where each pair is."""
    parts = [HEAD, _rules(matrix), _rows(matrix), _pairs(matrix)]
    return "\n".join(parts)


def _rules(matrix: ModuleType) -> str:
    lines = ["## What cannot be\n"]
    for rule in matrix.RULES:
        parts = " with ".join(f"{name} {', '.join(values)}" for name, values in rule.parts)
        lines.append(f"- {parts}: {rule.reason}.")
    return "\n".join(lines) + "\n"


def _rows(matrix: ModuleType) -> str:
    names = list(matrix.FACTORS)
    lines = [
        f"## The {len(matrix.ROWS)} rows\n",
        f"| row | {' | '.join(names)} | runs | result |",
        "|---" * (len(names) + 3) + "|",
    ]
    for number, row in enumerate(matrix.ROWS):
        compared = "passes" if row["target"] == "ort" else "same tokens"
        place = "on a GPU" if row["target"] in matrix.NEEDS_GPU else "everywhere"
        lines.append(f"| {number} | {' | '.join(row.values())} | {place} | {compared} |")
    return "\n".join(lines) + "\n"


def _pairs(matrix: ModuleType) -> str:
    """A table for each pair of factors: the rows that hold each pair of values."""
    possible = matrix.possible_pairs()
    where: dict[object, list[str]] = {}
    for number, row in enumerate(matrix.ROWS):
        for pair in matrix.pairs_of(row):
            where.setdefault(pair, []).append(str(number))
    lines = [f"## Where each of the {len(possible)} pairs is\n", "Numbers are rows.\n"]
    for (a, first), (b, second) in combinations(matrix.FACTORS.items(), 2):
        lines += [f"| {a} \\ {b} | {' | '.join(second)} |", "|---" * (len(second) + 1) + "|"]
        for x in first:
            cells = [", ".join(where.get(((a, x), (b, y)), ["–"])) for y in second]
            lines.append(f"| {x} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    command = [sys.executable, "-m", "pytest", "-q", str(TESTS / "test_matrix.py")]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit("a row fails: nothing was written")
    (ROOT / "docs" / "matrix.md").write_text(render(load()))
