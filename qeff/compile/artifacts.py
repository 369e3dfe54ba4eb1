"""Where results are kept: folders named by the hash of everything that decides their bytes.

    <root>/<Name>/<Name>-<16 hex>/      a graph
    <root>/<Name>/qpc-<16 hex>/         a container

Computing a name reads no tensor: the checkpoint's own hash is an input.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qeff.core.env import cache_root
from qeff.core.options import CompileOptions, ExportOptions

KEY_LEN = 16


def graph_folder(name: str, source_hash: str, options: ExportOptions, version: str) -> Path:
    """The folder for the graph that these options and this version of ours make."""
    key = content_key(_graph_inputs(source_hash, options, version))
    return cache_root() / folder_name(name) / f"{folder_name(name)}-{key}"


def container_folder(
    name: str,
    source_hash: str,
    export_options: ExportOptions,
    options: CompileOptions,
    version: str,
) -> Path:
    """The folder for the container that these options give for this checkpoint."""
    inputs = _graph_inputs(source_hash, export_options, version)
    key = content_key({**inputs, "compile": options.to_json()})
    return cache_root() / folder_name(name) / f"qpc-{key}"


def content_key(inputs: Mapping[str, Any]) -> str:
    """The first 16 hex digits of the SHA-256 of sorted compact JSON."""
    text = json.dumps(inputs, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LEN]


def folder_name(name: str) -> str:
    """A model's name as a folder: letters, digits, dot, dash and underscore."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "model"


def _graph_inputs(source_hash: str, options: ExportOptions, version: str) -> dict[str, Any]:
    return {"source": source_hash, "export": asdict(options), "version": version}
