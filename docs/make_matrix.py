"""Run the covering array of features and write it as docs/matrix.md.

Every row is a test of tests/apps/test_matrix.py; nothing is written unless all of them pass. A test
checks that what is written is what this would write.
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

Made by `docs/make_matrix.py`, which runs all rows first and writes nothing unless all pass.

Each row below compiles a tiny model as it says and runs four requests that begin alike through one
engine, with arrivals at different steps; `tests/apps/test_matrix.py` compares every request with
the same one alone on the same container: whole prompts, nothing reused, nothing guessed. On `cpu`
the two are equal bit for bit, log-probabilities included; on `reference` in all tokens (its sums
are numpy's, which depend on the shape of a call in the last bits); on `ort` greedy tokens are
compared as long as the likeliest one leads by 0.02 of log-probability (1.0 with a cache of halves),
each row run greedily once more for this, and of other outputs what they must be whatever their
tokens: streams without a lost or doubled token, the constraint followed,
no stop string in the text, no leaked cache block.
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
        (a, first), (b, second) = rule.first, rule.second
        lines.append(f"- {a} {', '.join(first)} with {b} {', '.join(second)}: {rule.reason}.")
    return "\n".join(lines) + "\n"


def _rows(matrix: ModuleType) -> str:
    names = list(matrix.FACTORS)
    lines = [
        f"## The {len(matrix.ROWS)} rows\n",
        f"| row | {' | '.join(names)} | result |",
        "|---" * (len(names) + 2) + "|",
    ]
    for number, row in enumerate(matrix.ROWS):
        compared = "passes" if row["target"] == "ort" else "same tokens"
        lines.append(f"| {number} | {' | '.join(row.values())} | {compared} |")
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
