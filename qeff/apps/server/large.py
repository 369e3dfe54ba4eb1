"""Work on large requests, done beside the event loop and one request at a time.

What reads and checks values keeps the interpreter to itself for as long as one call takes. Several
such threads would hold up the event loop in turns, and each other; a single one lets it in between
any two calls. Knows nothing of what the work is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

LARGE = 2**18  # bytes of a request, from which on it is a large one

Given = ParamSpec("Given")
Result = TypeVar("Result")
_worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large")


async def beside(
    size: int, work: Callable[Given, Result], *args: Given.args, **options: Given.kwargs
) -> Result:
    """The result of work on a request of so many bytes; done here and at once if it is small."""
    if size < LARGE:
        return work(*args, **options)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_worker, lambda: work(*args, **options))
