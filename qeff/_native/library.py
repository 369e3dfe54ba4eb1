"""The shared library: where it lies, its functions with their types, and its errors.

The structures are those of ``csrc/include/qeff.h``; a contract test compares their sizes.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
)
from ctypes import c_void_p as handle
from functools import cache
from pathlib import Path

from qeff.core.errors import ContainerError, QeffError, RequestError, ResourceError

API_VERSION = 3
ERROR_BYTES = 1024
NAME = "libqeff.dylib" if sys.platform == "darwin" else "libqeff.so"


FLOATS = POINTER(c_float)
INTS = POINTER(c_int64)


class Options(ctypes.Structure):
    """``qeff_options``."""

    _fields_ = (("num_threads", c_int32), ("isa", c_char_p))


class Info(ctypes.Structure):
    """``qeff_info``."""

    _fields_ = (
        ("vocab_size", c_int64),
        ("block_len", c_int64),
        ("block_bytes", c_int64),
        ("weights_bytes", c_int64),
        ("token_bytes", c_int64),
        ("num_threads", c_int32),
        ("isa", c_char * 16),
        ("kv_format", c_char * 16),
    )


class Span(ctypes.Structure):
    """``qeff_span``."""

    _fields_ = (
        ("start", c_int64),
        ("stop", c_int64),
        ("blocks", POINTER(c_int32)),
        ("num_blocks", c_int64),
    )


class Choice(ctypes.Structure):
    """``qeff_choice``."""

    _fields_ = (
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("top_k", c_int32),
        ("key0", c_uint64),
        ("key1", c_uint64),
        ("index", c_uint64),
    )


class Batch(ctypes.Structure):
    """``qeff_batch``."""

    _fields_ = (
        ("tokens", POINTER(c_int64)),
        ("positions", POINTER(c_int64)),
        ("num_tokens", c_int64),
        ("spans", POINTER(Span)),
        ("num_spans", c_int64),
        ("rows", POINTER(c_int64)),
        ("num_rows", c_int64),
        ("parents", POINTER(c_int32)),
        ("choices", POINTER(Choice)),
    )


_ERROR = (c_char_p, c_size_t)
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "qeff_api_version": (c_int32, ()),
    "qeff_isas": (c_char_p, ()),
    "qeff_open": (handle, (c_char_p, POINTER(Options), POINTER(c_int), *_ERROR)),
    "qeff_close": (None, (handle,)),
    "qeff_describe": (None, (handle, POINTER(Info))),
    "qeff_reserve": (c_int, (handle, c_int64, *_ERROR)),
    "qeff_step": (c_int, (handle, POINTER(Batch), POINTER(c_float), POINTER(c_int64), *_ERROR)),
    "qeff_copy_blocks": (c_int, (handle, POINTER(c_int32), c_int64, *_ERROR)),
    "qeff_copy_rows": (c_int, (handle, POINTER(c_int64), c_int64, *_ERROR)),
    "qeff_profile": (None, (handle, c_int32)),
    "qeff_take_profile": (c_size_t, (handle, c_char_p, c_size_t)),
    "qeff_measure_limits": (c_int, (c_int32, POINTER(c_double), POINTER(c_double))),
}
_ERRORS: dict[int, type[QeffError]] = {1: ContainerError, 2: RequestError, 3: ResourceError}


class Library:
    """The loaded library; ``call`` runs a function that reports errors, ``c`` has them all."""

    def __init__(self, path: Path) -> None:
        try:
            self.c = ctypes.CDLL(str(path))
        except OSError as error:
            raise ResourceError(
                f"the native engine cannot be loaded: {error}", "build it with: make native"
            ) from error
        # Before anything else is looked up: another version may lack it.
        found = getattr(self.c, "qeff_api_version", lambda: "none")()
        if found != API_VERSION:
            raise ResourceError(
                f"{path} has API version {found}, this release needs {API_VERSION}",
                "build it again with: make native",
            )
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments

    def call(self, name: str, *arguments: object) -> None:
        """Run a function whose last two arguments are the error text; raise what it reports."""
        text = ctypes.create_string_buffer(ERROR_BYTES)
        raise_for(getattr(self.c, name)(*arguments, text, ERROR_BYTES), text.value)

    def isas(self) -> list[str]:
        """The instruction sets that can be chosen here, best first."""
        return str(self.c.qeff_isas().decode()).split(",")

    def measure_limits(self, threads: int) -> tuple[float, float]:
        """Bytes read from memory and int8 products, each a second, with this many threads."""
        bandwidth, products = c_double(), c_double()
        code = self.c.qeff_measure_limits(threads, ctypes.byref(bandwidth), ctypes.byref(products))
        raise_for(code, b"the machine's limits cannot be measured")
        return bandwidth.value, products.value


def raise_for(code: int, text: bytes) -> None:
    """Raise the error that a code of the C API stands for."""
    if code == 0:
        return
    message = text.decode(errors="replace")
    assert code in _ERRORS, f"the native engine failed: {message}"
    hint = "compile again" if code == 1 else None
    raise _ERRORS[code](message, hint)


@cache
def load() -> Library:
    """The library beside this file. Raises ResourceError when it was not built."""
    path = Path(__file__).with_name(NAME)
    if not path.is_file():
        raise ResourceError(
            "the native engine is not built in this copy of qeff",
            "run: make native, or choose --target ort",
        )
    return Library(path)
