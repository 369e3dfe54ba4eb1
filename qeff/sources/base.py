"""The source: an opened checkpoint. Config and tensor headers at once, values when asked for.

Whatever the files are (safetensors, GGUF), a source speaks the names and layouts of a Hugging
Face checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from qeff.core.tensor import LazyTensor


class Source(Protocol):
    """An opened checkpoint."""

    @property
    def name(self) -> str:
        """A short name for folders and messages, such as ``SmolLM2-135M-Instruct``."""

    @property
    def kind(self) -> str:
        """``safetensors`` or ``gguf``."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The contents of config.json, or the same made from GGUF metadata."""

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """The contents of generation_config.json, or what is known of it."""

    @property
    def tensors(self) -> Mapping[str, LazyTensor]:
        """Every tensor by its checkpoint name."""

    @property
    def folder(self) -> Path | None:
        """A folder that transformers can load from, if there is one."""

    @property
    def gguf_file(self) -> Path | None:
        """The GGUF file, if the source is one."""

    def text_files(self) -> dict[str, bytes]:
        """What the run half needs to speak text: tokenizer.json, its config, the chat template."""

    def header_hash(self) -> str:
        """SHA-256 over config, tensor names, shapes, formats and places: what decides an export."""

    def content_hash(self) -> str:
        """SHA-256 over every byte of the checkpoint; remembered by size and time of each file."""
