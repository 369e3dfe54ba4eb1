"""The text files of a checkpoint folder: tokenizer and its settings, chat template, generation.

A tokenizer.json is taken as it is. Where there are only older tokenizer files, transformers
converts them. The chat template comes out under one name, wherever the checkpoint keeps it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qeff.core.errors import SourceError
from qeff.sources.json_file import read_json_object
from qeff.sources.library_border import LibraryBorder
from qeff.sources.tokenizer_text import describe_tokenizer

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
GENERATION_CONFIG = "generation_config.json"

_OLD_FILES = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_HINT = "download the checkpoint's tokenizer files again"


def read_text_files(folder: Path, trust_remote_code: bool) -> dict[str, bytes]:
    """Every text file that there is, by its usual name."""
    files: dict[str, bytes] = {}
    settings = _read_settings(folder)
    if (folder / TOKENIZER).is_file():
        files[TOKENIZER] = _read_json_bytes(folder / TOKENIZER)
    elif _has_old_tokenizer(folder, settings):
        converted = _convert(folder, trust_remote_code)
        files[TOKENIZER] = converted.pop(TOKENIZER)
        settings = json.loads(converted[TOKENIZER_CONFIG]) | settings
    if settings:
        files[TOKENIZER_CONFIG] = json.dumps(settings, ensure_ascii=False, indent=2).encode()
    template = _read_template(folder, settings)
    if template is not None:
        files[CHAT_TEMPLATE] = template.encode()
    if (folder / GENERATION_CONFIG).is_file():
        files[GENERATION_CONFIG] = _read_json_bytes(folder / GENERATION_CONFIG)
    return files


def _read_json_bytes(path: Path) -> bytes:
    """A file as it is, which must hold a JSON object."""
    read_json_object(path, _HINT)
    return path.read_bytes()


def _read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with special tokens that only special_tokens_map.json names."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", TOKENIZER_CONFIG):
        if (folder / name).is_file():
            settings |= read_json_object(folder / name, _HINT)
    return settings


def _has_old_tokenizer(folder: Path, settings: dict[str, Any]) -> bool:
    is_remote = "auto_map" in settings  # the tokenizer is code of the checkpoint's own
    return is_remote or any((folder / name).is_file() for name in _OLD_FILES)


def _convert(folder: Path, trust_remote_code: bool) -> dict[str, bytes]:
    from transformers import AutoTokenizer

    with LibraryBorder(
        SourceError,
        f"the tokenizer of {folder} cannot be converted",
        "add a tokenizer.json, or allow the checkpoint's own code with --trust-remote-code",
    ):
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=trust_remote_code, local_files_only=True
        )
        return describe_tokenizer(tokenizer, str(folder))


def _read_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """The chat template: a file of its own, an older JSON file, or a tokenizer setting."""
    if (folder / CHAT_TEMPLATE).is_file():
        try:
            return (folder / CHAT_TEMPLATE).read_text("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(f"{folder / CHAT_TEMPLATE} is not UTF-8 text", _HINT) from error
    if (folder / "chat_template.json").is_file():
        settings = read_json_object(folder / "chat_template.json", _HINT)
    return default_template(settings.get("chat_template"))


def default_template(value: Any) -> str | None:
    """The template itself, or the one called ``default`` of a list of named ones."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        template = named.get("default")
        return template if isinstance(template, str) else None
    return None
