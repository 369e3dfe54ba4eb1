"""Keeps transformers from printing while this project uses it.

Its warnings and progress bars are about its own loading, which nobody asked for here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import modeling_gguf_pytorch_utils
from transformers.utils import logging

from qeff.transform.patch import patched_attr


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No warnings and no bars until the context ends."""
    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with patched_attr(modeling_gguf_pytorch_utils, "tqdm", _no_bar):
            yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()


def _no_bar(items: Any, **kwargs: Any) -> Any:
    return items
