"""The text of an evaluation: a file, or a data set through the ``datasets`` library.

Gives one string, and its token ids with the beginning that the model's tokenizer puts before every
text. Knows nothing of windows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qeff.core.errors import OptionValueError, RequestError, ResourceError
from qeff.generate import Text

COLUMNS = ("text", "content", "sentence")
PARAGRAPH = "\n\n"  # between the rows of a data set, as in Hugging Face's perplexity guide


def read_file(path: Path) -> str:
    """The whole text of a UTF-8 file."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{path} is not UTF-8 text (byte {error.start})", "save the file as UTF-8"
        ) from error
    except OSError as error:
        raise RequestError(
            f"{path} cannot be read: {error.strerror}", "--text takes the name of a text file"
        ) from error
    if not text.strip():
        raise RequestError(f"{path} holds no text", "any plain text will do; longer is better")
    return text


def read_dataset(name: str, config: str | None, split: str) -> str:
    """All rows of a data set's split, joined."""
    try:
        import datasets
    except ImportError as error:
        raise ResourceError(
            "--dataset needs the library datasets, which is not installed",
            "pip install datasets, or give a text file with --text",
        ) from error
    from qeff.sources.library_border import LibraryBorder

    hint = "check --dataset, --dataset-config and --dataset-split, or give a file with --text"
    with LibraryBorder(RequestError, f"the data set {name!r} cannot be read", hint):
        rows: Any = datasets.load_dataset(name, config, split=split)
        column = next((one for one in COLUMNS if one in rows.column_names), None)
    if column is None:
        raise OptionValueError(
            f"the data set {name!r} has none of the columns {', '.join(COLUMNS)}",
            f"it has: {', '.join(rows.column_names)}",
        )
    return PARAGRAPH.join(rows[column])


def encode(text: Text, words: str) -> tuple[np.ndarray, int | None]:
    """Token ids, and the id that the tokenizer puts before every text, if it does."""
    ids = text.encode(words)
    before = text.encode("")[:1]
    bos = before[0] if before and before == ids[:1] else None
    return np.asarray(ids, np.int64), bos
