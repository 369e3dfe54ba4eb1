"""What a user may ask of export and compile, for Python, the command line and the manifest alike.

Validation of combinations lives here, so that every way in gives the same answer before any work
is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qeff.core.errors import OptionTypeError, OptionValueError, unknown_name

PRECISIONS = ("auto", "fp32", "fp16", "bf16", "int8", "int4", "mxfp8", "mxfp6", "mxfp4", "fp8")
CALIBRATIONS = ("auto", "none", "importance", "gptq")
KV_PRECISIONS = ("auto", "fp32", "fp16", "bf16", "fp8", "mxint8")
TARGETS = ("cpu", "cuda", "ort", "reference", "qaic", "qnn")
_GPU = "cuda"
_GPU_PRECISIONS = ("fp8",)  # of weights, in the target cuda alone
_GPU_KV_PRECISIONS = ("bf16", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What decides the bytes of a graph besides the checkpoint."""

    continuous_batching: bool = False
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file by its content: where it lies does not count."""

    sha256: str
    path: Path | None = field(default=None, compare=False)

    @classmethod
    def read(cls, path: str | Path) -> TextFile:
        """The file at a path; one that cannot be read is the caller's mistake."""
        try:
            return cls(hashlib.sha256(Path(path).read_bytes()).hexdigest(), Path(path))
        except OSError as error:
            raise OptionValueError(
                f"{path} cannot be read: {error.strerror}", "name a text file"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """What decides the bytes of a container besides the graph.

    ``precision_overrides`` are pairs of a pattern of weight names (``*``, ``?``) and the precision
    of the matrices that it matches; the last match counts. ``vendor`` holds the options that only
    a vendor's compiler understands (``num_cores``, ``mos``, …), by name. ``calibration`` says how
    coarse matrices are rounded, and ``calibration_file`` the text for it, instead of our own.
    """

    target: str = "cpu"
    precision: str = "auto"
    kv_precision: str = "auto"
    precision_overrides: tuple[tuple[str, str], ...] = ()
    calibration: str = "auto"
    calibration_file: TextFile | None = None
    prefill_seq_len: int = 32
    ctx_len: int = 128
    batch_size: int = 1
    full_batch_size: int | None = None
    kv_cache_batch_size: int | None = None
    num_devices: int = 1
    vendor: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise unknown_name("target", self.target, TARGETS)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.kv_precision not in KV_PRECISIONS:
            raise unknown_name("KV precision", self.kv_precision, KV_PRECISIONS)
        if self.calibration not in CALIBRATIONS:
            raise unknown_name("calibration", self.calibration, CALIBRATIONS)
        if self.calibration == "none" and self.calibration_file is not None:
            raise OptionValueError(
                "a calibration file is given, and no calibration asked for", "leave one of them out"
            )
        self._check_overrides()
        self._check_target()
        for name in ("prefill_seq_len", "ctx_len", "batch_size", "num_devices"):
            self._check_positive(name, getattr(self, name))
        for name in ("full_batch_size", "kv_cache_batch_size"):
            if getattr(self, name) is not None:
                self._check_positive(name, getattr(self, name))
        if self.full_batch_size is not None and self.batch_size != 1:
            raise OptionValueError(
                f"batch_size {self.batch_size} and full_batch_size {self.full_batch_size} "
                "exclude each other",
                "leave batch_size out when batching is continuous",
            )
        if self.kv_cache_batch_size is not None and self.kv_cache_batch_size < self.max_batch:
            name = "batch_size" if self.full_batch_size is None else "full_batch_size"
            raise OptionValueError(
                f"kv_cache_batch_size {self.kv_cache_batch_size} is smaller than "
                f"{name} {self.max_batch}",
                "every running sequence needs a cache slot of its own",
            )
        if self.prefill_seq_len > self.ctx_len:
            raise OptionValueError(
                f"prefill_seq_len {self.prefill_seq_len} is larger than ctx_len {self.ctx_len}",
                "lower prefill_seq_len (--prompt-len) or raise ctx_len (--ctx-len)",
            )

    def _check_overrides(self) -> None:
        overrides = self.precision_overrides
        is_pairs = isinstance(overrides, tuple) and all(
            isinstance(pair, tuple) and [type(item) for item in pair] == [str, str]
            for pair in overrides
        )
        if not is_pairs:
            raise OptionTypeError(
                f"precision_overrides must be pairs of a pattern and a precision, not {overrides!r}"
            )
        for _, precision in overrides:
            if precision not in PRECISIONS:
                raise unknown_name("precision", precision, PRECISIONS)

    def _check_target(self) -> None:
        """Raise for number formats that only one target has."""
        if self.target == _GPU:
            return
        asked = [self.precision, *(precision for _, precision in self.precision_overrides)]
        found = [precision for precision in asked if precision in _GPU_PRECISIONS]
        if found:
            raise OptionValueError(
                f"the target {self.target} has no weights in {found[0]}",
                "name another precision, or compile for the target cuda",
            )
        if self.kv_precision in _GPU_KV_PRECISIONS:
            raise OptionValueError(
                f"the target {self.target} has no cache in {self.kv_precision}",
                "name another precision, or compile for the target cuda",
            )

    @staticmethod
    def _check_positive(name: str, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise OptionTypeError(f"{name} must be a whole number, not {value!r}")
        if value < 1:
            raise OptionValueError(f"{name} must be at least 1, not {value}")

    @property
    def is_continuous(self) -> bool:
        return self.full_batch_size is not None

    @property
    def num_slots(self) -> int:
        """How many sequences the cache holds."""
        return self.kv_cache_batch_size or self.full_batch_size or self.batch_size

    @property
    def max_batch(self) -> int:
        """How many sequences one step runs."""
        return self.full_batch_size or self.batch_size

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {
            "precision_overrides": [list(pair) for pair in self.precision_overrides],
            "calibration_file": self.calibration_file and self.calibration_file.sha256,
            "vendor": dict(sorted(self.vendor.items())),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CompileOptions:
        pairs = tuple(tuple(pair) for pair in data.get("precision_overrides", ()))
        digest = data.get("calibration_file")
        file = None if digest is None else TextFile(str(digest))
        return cls(**{**data, "precision_overrides": pairs, "calibration_file": file})
