"""Kernels compiled many at a time, before any of them is launched.

Triton compiles a kernel when it is first launched, one after the other. While :func:`compiling` is
in force, what its thread launches is handed to others to be compiled, and not run. Knows nothing of
steps or of what kernels do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from triton import AsyncCompileMode
from triton.runtime.jit import JITFunction

MOST_THREADS = 16
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def compiling() -> Iterator[Callable[[], None]]:
    """Compile what this thread launches; at the end all of it is there.

    Gives a function that takes over what is done so far: to launch that once more is quick.
    """
    own, launch = threading.get_ident(), JITFunction.run

    def run(kernel: Any, *args: Any, warmup: bool, **more: Any) -> Any:
        is_dry = warmup or threading.get_ident() == own
        return launch(kernel, *args, warmup=is_dry, **more)

    with (
        _ONE_AT_A_TIME,
        ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool,
        AsyncCompileMode(pool) as mode,
    ):
        JITFunction.run = run
        try:
            yield lambda: _take_over(mode)
        finally:
            JITFunction.run = launch


def _take_over(mode: AsyncCompileMode) -> None:
    for future in mode.raw_futures:
        if future.done():
            mode.future_kernels[future._key].result()
