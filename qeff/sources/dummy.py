"""A checkpoint that is not there: random weights of the shapes that a config asks for.

Any shape can be compiled and measured without its weights. Values are drawn when they are asked
for, in pieces of rows that do not depend on each other, and are the same in every run. Needs
config.json alone; a tokenizer beside it is used, weights beside it are not.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from qeff.core.errors import SourceError, nearest
from qeff.core.formats import FORMATS
from qeff.core.tensor import FileRange, LazyTensor
from qeff.sources.folder_text import read_text_files
from qeff.sources.header_hash import hash_header
from qeff.sources.json_file import read_json_object
from qeff.sources.library_border import LibraryBorder
from qeff.sources.location import RANDOM, Location
from qeff.sources.safetensors_folder import read_config

SEED = 0
SPREAD = 0.02  # standard deviation of matrices, as models are usually initialised
PIECE_VALUES = 1 << 20  # values that are drawn at once
_FORMATS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class RandomTensor:
    """Normal values for a matrix; ones or zeros for a vector, as norms and biases begin."""

    name: str
    shape: tuple[int, ...]
    format: str

    @property
    def location(self) -> FileRange | None:
        return None

    @property
    def is_random(self) -> bool:
        """Nobody needs just these values: an engine may draw others, where it runs."""
        return True

    @property
    def dtype(self) -> np.dtype:
        dtype = FORMATS[self.format].dtype
        assert dtype is not None, f"{self.name} is plain"
        return dtype

    def read(self) -> np.ndarray:
        """All values."""
        if len(self.shape) < 2:
            return np.full(self.shape, self._vector_value(), self.dtype)
        return self.read_rows(0, self._num_rows).reshape(self.shape)

    def raw(self) -> np.ndarray:
        """The bytes of all values, [rows, bytes per row]."""
        return _bytes_of(self.read().reshape(self._num_rows, -1))

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """The values of some rows."""
        if len(self.shape) < 2:
            return self.read().reshape(1, -1)[start:stop]
        width, each = self.shape[-1], self._rows_of_piece
        out = np.empty((stop - start, width), self.dtype)
        for piece in range(start // each, -(-stop // each)):
            low, high = max(start, piece * each), min(stop, (piece + 1) * each)
            drawn = self._draw(piece, high - piece * each)
            out[low - start : high - start] = drawn[low - piece * each :]
        return out

    def raw_rows(self, start: int, stop: int) -> np.ndarray:
        """The bytes of some rows."""
        return _bytes_of(self.read_rows(start, stop))

    @property
    def _num_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def _rows_of_piece(self) -> int:
        return max(1, PIECE_VALUES // max(1, self.shape[-1]))

    def _draw(self, piece: int, rows: int) -> np.ndarray:
        """The first rows of a piece; each piece has a stream of its own."""
        key = [SEED, zlib.crc32(self.name.encode()), piece]
        draws = np.random.Generator(np.random.SFC64(key))
        values = draws.standard_normal((rows, self.shape[-1]), np.float32)
        values *= SPREAD
        return values

    def _vector_value(self) -> float:
        return 1.0 if self.name.endswith("weight") else 0.0


class DummySource:
    """An opened config."""

    kind = RANDOM
    # Neither is there: what transformers could load would not be these weights.
    folder: Path | None = None
    gguf_file: Path | None = None

    def __init__(self, location: Location) -> None:
        self.location = location
        self.config: Mapping[str, Any] = read_config(location.path)

    @property
    def name(self) -> str:
        return self.location.name

    @cached_property
    def tensors(self) -> Mapping[str, LazyTensor]:
        form = _stored_format(self.config)
        return {
            name: RandomTensor(name, shape, form)
            for name, shape in parameter_shapes(self.config, str(self.location.path)).items()
        }

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        path = self.location.path / "generation_config.json"
        return read_json_object(path, "delete it or repair it") if path.is_file() else {}

    def text_files(self) -> dict[str, bytes]:
        return read_text_files(self.location.path, self.location.trust_remote_code)

    def header_hash(self) -> str:
        return hash_header(self.config, self.tensors)

    def content_hash(self) -> str:
        return self.location.content_hash()


def parameter_shapes(config: Mapping[str, Any], where: str) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter that transformers gives a model of this config."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = {name: value for name, value in config.items() if name != "quantization_config"}
    model_type = str(known["model_type"])
    if model_type not in CONFIG_MAPPING:
        close = nearest(model_type, list(CONFIG_MAPPING.keys()))
        hint = f"the nearest known type is {close!r}" if close else None
        raise SourceError(f"{where} has the unknown model type {model_type!r}", hint)
    hint = "random weights are made for causal language models of transformers"
    with LibraryBorder(SourceError, f"no model can be made of the config in {where}", hint):
        made = CONFIG_MAPPING[model_type].from_dict(known)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    return {name: tuple(value.shape) for name, value in model.named_parameters()}


def _stored_format(config: Mapping[str, Any]) -> str:
    """The number format that the config's checkpoint would have."""
    word = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    return _FORMATS.get(str(word).removeprefix("torch."), "bf16")


def _bytes_of(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8)
