"""Tiny checkpoints, written by the libraries that own the formats, in a cache of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 10}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache root that no other test sees."""
    path = tmp_path / "home"
    monkeypatch.setenv("QEFF_HOME", str(path))
    return path


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a checkpoint folder: one weights file, or one per shard."""

    def make(
        tensors: Mapping[str, np.ndarray], *, shards: Mapping[str, list[str]] | None = None
    ) -> Path:
        from safetensors.numpy import save_file

        folder = tmp_path / "tiny-model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        if shards is None:
            save_file(dict(tensors), folder / "model.safetensors")
            return folder
        for shard, names in shards.items():
            save_file({name: tensors[name] for name in names}, folder / shard)
        weight_map = {name: shard for shard, names in shards.items() for name in names}
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    return make
