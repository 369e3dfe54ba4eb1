"""Write the project's tree: every room into the README, every file into docs/tree.md.

The one line of each Python file is the first line of its docstring, that of a C++ file the first
sentence of the comment it begins with; a source without one does what its header says. Run by
`make tree`; a test checks that what is written is what this would write.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("qeff", "QEfficient")
NATIVE = {
    "include": "the C API",
    "api": "the C API's functions: arguments and errors, nothing else",
    "base": "JSON, mapped files, threads, errors",
    "program": "a container's program: loaded, checked, planned, run",
    "ops": "one file for each op kind or family: its checks, and its stages",
    "kernels": "the arithmetic, compiled once for each instruction set",
    "formats": "one header for each weight format",
    "simd": "one header for each instruction set",
    "isa": "the choice of an instruction set, and the machine's limits",
    "tests": "tests and benchmarks of all this",
}
BEGIN, END = "<!-- tree: made by docs/make_tree.py -->\n", "<!-- end of tree -->\n"


def first_line(path: Path) -> str:
    """What a file says of itself."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.splitlines()[0] if text else ""


def native_files() -> list[Path]:
    """Every C++ file, folder by folder in the order of the list above."""
    found = [path for name in NATIVE for path in sorted((ROOT / "csrc" / name).iterdir())]
    assert set(found) == {path for path in (ROOT / "csrc").rglob("*") if path.is_file()}, (
        "a folder of csrc is not in the list"
    )
    return found


def first_comment(text: str) -> str:
    """The comment that a C or C++ file begins with, as one line; empty when there is none."""
    block = re.match(r"/\*(.*?)(?:\n \*\n|\*/)", text, re.DOTALL)
    if block:
        return " ".join(line.strip(" *") for line in block[1].splitlines()).strip()
    lines = re.match(r"(?://[^\n]+\n)*", text)
    assert lines is not None, "a pattern that matches nothing matches"
    kept = [line[2:].strip() for line in lines[0].splitlines()]
    return " ".join(kept[: kept.index("")] if "" in kept else kept)


def native_job(path: Path) -> str:
    """The first sentence of a file's comment, or of its header's."""
    header = path.with_suffix(".h")
    comment = first_comment(path.read_text())
    if not comment and header != path and header.is_file():
        comment = first_comment(header.read_text())
    return re.split(r"(?<=\.)\s", comment)[0].replace("|", "\\|")


def rooms() -> str:
    """One line for each package and each of its rooms."""
    lines = []
    for package in PACKAGES:
        doors = sorted((ROOT / package).glob("*/__init__.py"))
        lines += [f"{package + '/' + door.parent.name:<18} {first_line(door)}" for door in doors]
    lines += [f"{'csrc/' + name:<18} {what}" for name, what in NATIVE.items()]
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
    folder = None
    for path in native_files():
        if path.parent != folder:
            folder = path.parent
            out.append(f"\n## {folder.relative_to(ROOT)}\n\n| file | job |\n|---|---|")
        out.append(f"| `{path.name}` | {native_job(path)} |")
    return "\n".join(out) + "\n"


def readme(text: str) -> str:
    """The README with its tree made anew."""
    head, rest = text.split(BEGIN)
    return head + BEGIN + rooms() + END + rest.split(END)[1]


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(readme(path.read_text()))
    (ROOT / "docs" / "tree.md").write_text(files())
