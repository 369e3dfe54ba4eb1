"""The output of a batch: a file that only grows, by whole lines, one for each answer.

Opened again it says what was answered before. A last line without its end, which a killed process
leaves behind, is cut off: its request is asked again. One process at a time writes to it.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from qeff.core.errors import RequestError, ResourceError

START = b'{"id": "batch_req_'  # how every line begins


class Ledger:
    """The answers of a batch on disk."""

    def __init__(self, path: Path, *, starts_over: bool = False) -> None:
        if path.exists() and not path.is_file():
            raise RequestError(f"{path} is no file", "answers are kept in a file of their own")
        self.path = path
        self.answered: dict[str, str | None] = {}  # custom ids by the ids of the jobs
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ResourceError(f"{path} cannot be written: {error.strerror}") from error
        try:
            self._lock()
            if starts_over:
                os.ftruncate(self._file, 0)
            self._read()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.fsync(self._file)
        os.close(self._file)

    def append(self, answer: dict[str, Any]) -> None:
        """Write one answer to the end of the file."""
        left = memoryview(json.dumps(answer).encode() + b"\n")
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            raise ResourceError(
                f"{self.path} cannot be written: {error.strerror}",
                "make room, then run the same command again to go on",
            ) from error
        self.answered[answer["id"]] = answer["custom_id"]

    def check(self, wanted: dict[str, str | None], source: Path) -> None:
        """Refuse a file that holds answers to something else than ``source`` asks."""
        for name, custom_id in self.answered.items():
            if name not in wanted:
                who = "a line" if custom_id is None else f"custom_id {custom_id!r}"
                raise RequestError(
                    f"{self.path} has an answer to {who} that {source} does not ask like that",
                    "give another file for the answers, or --overwrite to begin again",
                )

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResourceError(f"another process is writing to {self.path}") from error
        except OSError as error:
            raise ResourceError(f"{self.path} cannot be locked: {error.strerror}") from error

    def _read(self) -> None:
        """Note what was answered, and cut off a line that has no end."""
        end = 0
        with os.fdopen(os.dup(self._file), "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    if not (line.startswith(START) or START.startswith(line)):
                        raise self._foreign(number)  # not ours to cut
                    break
                end += len(line)
                self._note(line, number)
        os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)

    def _note(self, line: bytes, number: int) -> None:
        try:
            answer = json.loads(line)
            name, custom_id = answer["id"], answer["custom_id"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._foreign(number) from error
        if name in self.answered:
            raise RequestError(f"line {number} of {self.path} answers a request a second time")
        self.answered[name] = custom_id

    def _foreign(self, number: int) -> RequestError:
        return RequestError(
            f"line {number} of {self.path} is no answer of a batch",
            "give another file for the answers, or --overwrite to begin again",
        )
