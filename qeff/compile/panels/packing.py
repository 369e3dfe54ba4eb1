"""Matrices to panels, piece by piece, on all cores, in the order in which the file has them.

A few rows are in memory at a time, whatever the size of the matrix. The pieces, and the sums of
errors, do not depend on the number of threads.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from qeff.compile.panels.encoding import code_rows, encode_rows, energy_of
from qeff.compile.panels.gguf_rows import EXACT, read_gguf_rows
from qeff.compile.panels.layout import PANEL_ROWS, Coded, block_panels
from qeff.compile.panels.matrix import Matrix, NoNumber, float_matrix
from qeff.compile.quantize.feedback import Sensitivity

_CHUNK_VALUES = 1 << 17  # fits the cache of a core, with what the arithmetic needs beside it
# Columns one after the other: many rows at a time, since each column is a call.
_CHUNK_VALUES_FEEDBACK = 1 << 19
_MAX_THREADS = 64


@dataclass(slots=True)
class Sums:
    """Squared differences and squared values of a matrix, added up while it is packed."""

    error: float = 0.0
    energy: float = 0.0


Piece = tuple[Any, float, float]  # panels or codes, squared differences, squared values


@dataclass(frozen=True, slots=True)
class _Making:
    """What pieces are made of: floats, or codes that a checkpoint has already."""

    encode: Callable[[np.ndarray, str, Sensitivity | None], tuple[Any, float]]
    repack: Callable[[Coded, str], Any]


_PANELS = _Making(encode_rows, block_panels)
_CODES = _Making(code_rows, lambda coded, form: coded)


def stream_panels(
    matrix: Matrix,
    form: str,
    sums: Sums | None = None,
    threads: int | None = None,
    sensitivity: Sensitivity | None = None,
) -> Iterator[np.ndarray]:
    """The panels of a matrix from first to last, uint8 [some panels, bytes] at a time.

    ``sensitivity`` is that of the columns, and the same for every matrix of a stack.
    """
    sums = Sums() if sums is None else sums
    return _stream(_jobs(matrix, form, sensitivity, _PANELS), sums, threads or num_threads())


def stream_codes(
    matrix: Matrix, form: str, sums: Sums, sensitivity: Sensitivity | None = None
) -> Iterator[Coded]:
    """Scales and codes of a matrix from first row to last, some rows at a time."""
    return _stream(_jobs(matrix, form, sensitivity, _CODES), sums, num_threads())


def _stream(jobs: Iterator[Callable[[], Piece]], sums: Sums, threads: int) -> Iterator[Any]:
    for made, error, energy in _in_order(jobs, threads):
        sums.error += error
        sums.energy += energy
        yield made


def pack_panels(
    rows: np.ndarray, form: str, packing: str | None = None, threads: int | None = None
) -> np.ndarray:
    """Panels uint8 [panels, bytes] of a float matrix, or of packed GGUF rows [rows, bytes]."""
    matrix = float_matrix(rows)
    if packing is not None:
        matrix = Matrix((1, *rows.shape), lambda index, start, stop: rows[start:stop], packing)
    return np.concatenate(list(stream_panels(matrix, form, threads=threads)))


def num_threads() -> int:
    """The cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, _MAX_THREADS)


def _jobs(
    matrix: Matrix, form: str, sensitivity: Sensitivity | None, making: _Making
) -> Iterator[Callable[[], Piece]]:
    assert matrix.packing is None or EXACT[matrix.packing] == form, (
        f"{matrix.packing} does not become {form} without loss"
    )
    num_matrices, num_rows, num_cols = matrix.shape
    has_feedback = sensitivity is not None and sensitivity.factors
    num_values = _CHUNK_VALUES_FEEDBACK if has_feedback else _CHUNK_VALUES
    step = max(1, num_values // max(num_cols, 1) // PANEL_ROWS) * PANEL_ROWS
    for index in range(num_matrices):
        for start in range(0, num_rows, step):
            place = (index, start, min(start + step, num_rows))
            yield _job(matrix, form, place, sensitivity, making)


def _job(
    matrix: Matrix,
    form: str,
    place: tuple[int, int, int],
    sensitivity: Sensitivity | None,
    making: _Making,
) -> Callable[[], Piece]:
    def repack() -> Piece:
        assert matrix.packing is not None
        coded = read_gguf_rows(matrix.read(*place), matrix.packing)
        return making.repack(coded, form), 0.0, 0.0

    def encode() -> Piece:
        rows = matrix.read(*place)
        energy = energy_of(rows)
        if not math.isfinite(energy):
            raise NoNumber(f"rows {place[1]} to {place[2]} hold values that are no numbers")
        made, error = making.encode(rows, form, sensitivity)
        return made, error, energy

    return encode if matrix.packing is None else repack


def _in_order(jobs: Iterator[Callable[[], Piece]], threads: int) -> Iterator[Piece]:
    """Results in the order of the jobs; few are waiting, so that memory stays small."""
    first, second = next(jobs, None), next(jobs, None)
    if first is None:
        return
    if second is None:
        yield first()
        return
    with ThreadPoolExecutor(threads, "pack") as pool:
        waiting: deque[Future[Piece]] = deque(map(pool.submit, (first, second)))
        for job in jobs:
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(job))
        while waiting:
            yield waiting.popleft().result()
