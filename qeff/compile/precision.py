"""Which number format each weight matrix gets: by its role, the precision asked for and overrides.

The head and the embeddings keep eight bits where the products get fewer, since an error there moves
every token's probability, and so do values that query heads share where products get four. Packed
checkpoint tensors stay as they are unless a precision is named. Knows no number of a weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx_ir as ir

from qeff.compile.matrices import Stored
from qeff.compile.panels.gguf_rows import EXACT
from qeff.core.errors import OptionValueError, nearest
from qeff.core.formats import FORMATS
from qeff.core.options import CompileOptions
from qeff.core.progress import log
from qeff.core.tensor import LazyTensor
from qeff.export.artifact import CheckpointTensor
from qeff.ops.base import FLOATS

FORMAT_OF = {
    "fp32": "f32",
    "fp16": "f16",
    "bf16": "bf16",
    "int8": "q8_0",
    "int4": "q4_0",
    "mxfp8": "mxfp8",
    "mxfp6": "mxfp6",
    "mxfp4": "mxfp4",
    "fp8": "fp8",
}
CONVERTED = "q8_0"  # what a packed format that no engine of ours runs becomes
_COARSE = ("int4", "mxfp8", "mxfp6", "mxfp4", "fp8")
_KEPT_HIGHER = ("head", "embedding")
_FOUR_BITS = ("int4", "mxfp4")


@dataclass(frozen=True, slots=True)
class Choice:
    """How a matrix is stored: its format, and what it is called when people are told."""

    format: str
    label: str
    packed: LazyTensor | None = None  # the packed tensor that it is made of
    is_exact: bool = False  # the packed rows are taken over as they are

    @property
    def is_lossy(self) -> bool:
        """Whether the change of numbers is one to report; rounding of plain floats is not."""
        return not self.is_exact and self.format not in FLOATS


def choose(
    entries: Sequence[Stored], tensors: Mapping[str, ir.TensorProtocol], options: CompileOptions
) -> dict[str, Choice]:
    """The choice for each matrix, by the entry's name."""
    matrices = [entry for entry in entries if entry.is_matrix]
    _check_patterns(options.precision_overrides, [entry.source for entry in matrices])
    return {
        entry.name: _choose(entry, packed_of(entry, tensors[entry.source]), options)
        for entry in matrices
    }


def classes(entries: Sequence[Stored], choices: Mapping[str, Choice]) -> dict[str, str]:
    """The formats of each weight class, joined where there are several."""
    found: dict[str, set[str]] = {"linear": set(), "head": set(), "embedding": set()}
    for entry in entries:
        if entry.is_matrix:
            for role in entry.roles:
                found.setdefault(role, set()).add(choices[entry.name].label)
    found["other"] = {"fp32"} | found.get("other", set())
    return {role: "+".join(sorted(labels)) for role, labels in found.items() if labels}


def tell_conversions(choices: Iterable[Choice]) -> None:
    """Say which packed formats are not run as they are."""
    changed = Counter(
        (choice.packed.format, choice.format)
        for choice in choices
        if choice.packed is not None and choice.is_lossy
    )
    for (old, new), count in sorted(changed.items()):
        log.warning(
            "%d tensors in %s become %s; the certificate tells how far that is from them",
            count,
            old,
            new,
        )


def packed_of(entry: Stored, tensor: ir.TensorProtocol) -> LazyTensor | None:
    """The checkpoint's packed tensor, where the matrix is just that."""
    if not isinstance(tensor, CheckpointTensor) or FORMATS[tensor.lazy.format].is_plain:
        return None
    return None if entry.is_transposed else tensor.lazy


def _choose(entry: Stored, packed: LazyTensor | None, options: CompileOptions) -> Choice:
    precision = _asked(entry, packed is not None, options)
    if precision != "auto":
        form = FORMAT_OF[precision]
        is_exact = packed is not None and EXACT.get(packed.format) == form
        return Choice(form, precision, packed, is_exact)
    if packed is None:
        return Choice("f16", "fp16")
    if packed.format in EXACT:
        return Choice(EXACT[packed.format], EXACT[packed.format], packed, is_exact=True)
    return Choice(CONVERTED, CONVERTED, packed)


def _asked(entry: Stored, is_packed: bool, options: CompileOptions) -> str:
    """The precision of an entry; the last override that matches counts."""
    for pattern, precision in reversed(options.precision_overrides):
        if fnmatchcase(entry.source, pattern):
            return precision
    if "other" in entry.roles:
        return "fp32"
    if options.precision in _COARSE and entry.roles & set(_KEPT_HIGHER):
        return "auto" if is_packed else "int8"
    if options.precision in _FOUR_BITS and "value" in entry.roles and not is_packed:
        return "int8"
    return options.precision


def _check_patterns(overrides: Sequence[tuple[str, str]], names: Iterable[str]) -> None:
    known = list(dict.fromkeys(names))
    for pattern, _ in overrides:
        if not any(fnmatchcase(name, pattern) for name in known):
            close = nearest(pattern, known) or next(iter(known), None)
            raise OptionValueError(
                f"no weight matrix has a name like {pattern!r}",
                f"there is {close!r}" if close else "the program has no matrices",
            )
