"""The border to a library that is shown a user's file.

A checkpoint can make transformers or tokenizers fail anywhere, with any class of error. Here such a
failure becomes one sentence about the file; the original stays attached as its cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from qeff.core.errors import QeffError

_MAX_CHARS = 300


@dataclass(frozen=True, slots=True)
class LibraryBorder:
    """``with LibraryBorder(SourceError, "x cannot be read", hint):`` around calls of a library."""

    error: type[QeffError]
    what: str
    hint: str

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Interrupts, a full memory and our own errors pass as they are.
        if not isinstance(error, Exception) or isinstance(error, (QeffError, MemoryError)):
            return
        lines = str(error).strip().splitlines() or [type(error).__name__]
        said = lines[0]
        if said.endswith(":") and len(lines) > 1:  # a title, and the reason below it
            said = f"{said} {lines[1].strip()}"
        raise self.error(f"{self.what}: {said[:_MAX_CHARS]}", self.hint) from error
