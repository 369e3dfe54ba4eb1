"""A GGUF file as a source: config, tokenizer and tensors as a Hugging Face checkpoint has them.

The header is read and checked when the source is opened. Config, tensors and text are made by
transformers from the same file when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from qeff.core.tensor import LazyTensor
from qeff.sources.gguf_config import read_gguf_config
from qeff.sources.gguf_header import read_gguf_header
from qeff.sources.gguf_text import describe_generation, read_gguf_text
from qeff.sources.header_hash import hash_header
from qeff.sources.location import Location


class GgufSource:
    """An opened GGUF file."""

    kind = "gguf"
    folder: Path | None = None

    def __init__(self, location: Location) -> None:
        assert location.gguf_file is not None, f"{location.path} is no GGUF file"
        self.location = location
        self.gguf_file: Path | None = location.gguf_file
        self.header = read_gguf_header(location.gguf_file)

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.location.name

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The config that transformers makes from the metadata."""
        return read_gguf_config(self.header)

    @cached_property
    def generation_config(self) -> Mapping[str, Any]:
        """The special token ids, which is all a GGUF file knows."""
        return describe_generation(self.header)

    @cached_property
    def tensors(self) -> Mapping[str, LazyTensor]:
        """Every tensor by its Hugging Face name."""
        from qeff.sources.gguf_names import name_tensors

        return name_tensors(self.header, self.config)

    def text_files(self) -> dict[str, bytes]:
        """The tokenizer, its settings, the chat template and the special token ids."""
        return read_gguf_text(self.header)

    def header_hash(self) -> str:
        """SHA-256 over config and tensor descriptions."""
        return hash_header(self.config, self.tensors)

    def content_hash(self) -> str:
        """SHA-256 over every byte of the file."""
        return self.location.content_hash()
