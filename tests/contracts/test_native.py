"""The C++ core keeps its rules: budgets, comments, the border to Python, one definition of each."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
from test_documents import maker_of

import qeff
from qeff._native import library

ROOT = Path(qeff.__file__).parent.parent
SOURCES = sorted(path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".cc", ".h"))
HEADER = (ROOT / "csrc" / "include" / "qeff.h").read_text()
MAX_LINES = 600
MAX_COLUMNS = 120

# Compiled once for each instruction set: an inline body of the standard library in one of these may
# be the copy that the linker keeps for all, and then runs where its instructions do not exist.
PER_ISA = ("kernels", "simd", "formats")
ONCE = {"weight_format.cc"}  # a source in these folders that is compiled once
# What they may use: headers of functions that the compiler knows itself, and these functions.
PLAIN_HEADERS = {"cmath", "cstddef", "cstdint", "cstring", "math.h", "arm_neon.h", "immintrin.h"}
PLAIN_FUNCTIONS = {"memcpy", "memset", "fabs", "fma", "nearbyint", "nearbyintf", "sqrt"}

FIELD_TYPES = {
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "const char*": ctypes.c_char_p,
    "const int32_t*": ctypes.POINTER(ctypes.c_int32),
    "const int64_t*": ctypes.POINTER(ctypes.c_int64),
    "float": ctypes.c_float,
    "uint64_t": ctypes.c_uint64,
    "const qeff_span*": ctypes.POINTER(library.Span),
    "const qeff_choice*": ctypes.POINTER(library.Choice),
}
ARGUMENT_TYPES = FIELD_TYPES | {
    "void": None,
    "int": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "char*": ctypes.c_char_p,
    "float*": ctypes.POINTER(ctypes.c_float),
    "int64_t*": ctypes.POINTER(ctypes.c_int64),
    "double*": ctypes.POINTER(ctypes.c_double),
    "int*": ctypes.POINTER(ctypes.c_int),
    "qeff_session*": library.handle,
    "const qeff_session*": library.handle,
    "qeff_info*": ctypes.POINTER(library.Info),
    "const qeff_options*": ctypes.POINTER(library.Options),
    "const qeff_batch*": ctypes.POINTER(library.Batch),
}
STRUCTURES = {
    "qeff_options": library.Options,
    "qeff_info": library.Info,
    "qeff_span": library.Span,
    "qeff_choice": library.Choice,
    "qeff_batch": library.Batch,
}


def code_of(text: str) -> str:
    """A C or C++ text without its comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def fields_of(body: str) -> list[tuple[str, object]]:
    """Names and ctypes types of the members of a C structure."""
    found: list[tuple[str, object]] = []
    for line in filter(None, (part.strip() for part in code_of(body).split(";"))):
        kind, names = re.fullmatch(r"((?:const )?\w+\*?) (.+)", line).groups()  # type: ignore[union-attr]
        for name in names.split(","):
            array = re.fullmatch(r"(\w+)\[(\d+)\]", name.strip())
            if array:
                assert kind == "char", line
                found.append((array[1], ctypes.c_char * int(array[2])))
            else:
                found.append((name.strip(), FIELD_TYPES[kind]))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "csrc")))
def test_file_keeps_its_budget(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= MAX_LINES
    wide = [number for number, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS]
    assert wide == [], f"lines over {MAX_COLUMNS} columns"
    assert not any(line.endswith((" ", "\t")) or "\t" in line for line in lines)
    if path.suffix == ".h":
        assert maker_of("make_tree").first_comment(path.read_text()), (
            "a header says first what it is for"
        )


def test_every_file_has_a_job_in_the_tree() -> None:
    maker = maker_of("make_tree")
    assert set(maker.native_files()) == set(SOURCES)
    assert [path for path in SOURCES if not maker.native_job(path)] == []
    text = (ROOT / "README.md").read_text()
    assert all(f"csrc/{name} " in text for name in maker.NATIVE)


def test_structures_are_those_of_the_header() -> None:
    found = re.findall(r"typedef struct \{(.*?)\} (\w+);", HEADER, re.DOTALL)
    bodies = {name: body for body, name in found}
    assert set(bodies) == set(STRUCTURES)
    for name, structure in STRUCTURES.items():
        assert fields_of(bodies[name]) == list(structure._fields_), name


def test_functions_are_those_of_the_header() -> None:
    pattern = r"QEFF_EXPORT ((?:const )?\w+\*?) (\w+)\(([^)]*)\);"
    found = {}
    for result, name, text in re.findall(pattern, code_of(HEADER)):
        words = [re.sub(r"\s+", " ", part).strip() for part in text.split(",")]
        kinds = [] if words == ["void"] else [re.sub(r" \w+$", "", word) for word in words]
        found[name] = (ARGUMENT_TYPES[result], tuple(ARGUMENT_TYPES[kind] for kind in kinds))
    assert found == library._SIGNATURES
    assert HEADER.count("QEFF_EXPORT ") - HEADER.count("#define QEFF_EXPORT ") == len(found)


def test_version_and_codes_are_those_of_the_header() -> None:
    assert f"#define QEFF_API_VERSION {library.API_VERSION}\n" in HEADER
    codes = {int(code): name for name, code in re.findall(r"(QEFF_\w+) = (\d)", HEADER)}
    names = {code: error.__name__ for code, error in library._ERRORS.items()}
    assert codes == {
        0: "QEFF_OK",
        1: "QEFF_BAD_CONTAINER",
        2: "QEFF_BAD_REQUEST",
        3: "QEFF_NO_RESOURCE",
        4: "QEFF_INTERNAL",
    }
    assert names == {1: "ContainerError", 2: "RequestError", 3: "ResourceError"}
    enum = (ROOT / "csrc" / "base" / "error.h").read_text()
    assert "kContainer = 1, kRequest = 2, kResource = 3, kInternal = 4" in enum


@pytest.mark.parametrize(
    "path",
    [p for p in SOURCES if p.parent.name in PER_ISA and p.name not in ONCE],
    ids=lambda p: str(p.relative_to(ROOT / "csrc")),
)
def test_kernels_have_no_inline_body_of_the_standard_library(path: Path) -> None:
    text = code_of(path.read_text())
    assert set(re.findall(r"#include <([\w.]+)>", text)) <= PLAIN_HEADERS
    assert set(re.findall(r"std::(\w+)", text)) <= PLAIN_FUNCTIONS


def test_every_instruction_set_has_its_header_and_its_place_in_the_build() -> None:
    # A part of a layer that is too long for one file is called <layer>_<part>.
    files = {path.stem for path in (ROOT / "csrc" / "simd").glob("*.h")} - {"math"}
    headers = {name for name in files if "_" not in name}
    built = set(re.findall(r"add_isa\((\w+)", (ROOT / "CMakeLists.txt").read_text()))
    declared = (ROOT / "csrc" / "isa" / "dispatch.cc").read_text()
    assert built == headers == set(re.findall(r"^QEFF_DECLARE\((\w+)\)", declared, re.MULTILINE))


def test_every_weight_format_has_its_header() -> None:
    shared = {"codes", "columns", "layout"}
    headers = {path.stem for path in (ROOT / "csrc" / "formats").glob("*.h")} - shared
    table = (ROOT / "csrc" / "formats" / "weight_format.cc").read_text()
    assert headers == set(re.findall(r'\{"(\w+)", WeightFormat', table))
