"""Write the project's tree: every room into the README, every file into docs/tree.md.

The one line of each file is the first line of its docstring. Run by `make tree`; a test checks
that what is written is what this would write.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("qeff", "QEfficient")
BEGIN, END = "<!-- tree: made by docs/make_tree.py -->\n", "<!-- end of tree -->\n"


def first_line(path: Path) -> str:
    """What a file says of itself."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.splitlines()[0] if text else ""


def rooms() -> str:
    """One line for each package and each of its rooms."""
    lines = []
    for package in PACKAGES:
        doors = sorted((ROOT / package).glob("*/__init__.py"))
        lines += [f"{package + '/' + door.parent.name:<18} {first_line(door)}" for door in doors]
    for name, what in (
        ("tests", "one folder for each room, and contracts/: layers, budgets, imports, words"),
        ("benchmarks", "one script for each published number"),
        ("docs", "the formats between the rooms, the tour, the glossary"),
        ("examples", "short programs that the tests run"),
    ):
        lines.append(f"{name:<18} {what}")
    return "```\n" + "\n".join(lines) + "\n```\n"


def files() -> str:
    """One line for each file, room by room."""
    out = ["# Every file and its job\n"]
    for package in PACKAGES:
        folders = sorted({path.parent for path in (ROOT / package).rglob("*.py")})
        for folder in folders:
            out.append(f"\n## {folder.relative_to(ROOT)}\n\n| file | job |\n|---|---|")
            out += [
                f"| `{path.name}` | {first_line(path)} |" for path in sorted(folder.glob("*.py"))
            ]
    return "\n".join(out) + "\n"


def readme(text: str) -> str:
    """The README with its tree made anew."""
    head, rest = text.split(BEGIN)
    return head + BEGIN + rooms() + END + rest.split(END)[1]


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(readme(path.read_text()))
    (ROOT / "docs" / "tree.md").write_text(files())
