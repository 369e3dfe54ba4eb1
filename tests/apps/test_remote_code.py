"""Code that a checkpoint brings runs only when the user says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM

Path({mark!r}).touch()

class MineConfig(LlamaConfig):
    model_type = "mine"

class MineForCausalLM(LlamaForCausalLM):
    config_class = MineConfig
"""


def make_checkpoint(folder: Path, mark: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    settings |= {
        "model_type": "mine",
        "architectures": ["MineForCausalLM"],
        "auto_map": {
            "AutoConfig": "mine_code.MineConfig",
            "AutoModelForCausalLM": "mine_code.MineForCausalLM",
        },
    }
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "mine_code.py").write_text(CODE.format(mark=str(mark)))
    letters = {chr(i): i for i in range(128)}
    Tokenizer(models.BPE(vocab=letters, merges=[])).save(str(folder / "tokenizer.json"))


def infer(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qeff", "infer", "--model-name", str(folder), "--prompt", "hi"]
    sizes = ["--generation-len", "4", "--ctx-len", "32", "--prompt-len", "16"]
    places = {"QEFF_HOME": str(folder.parent / "cache"), "HF_HOME": str(folder.parent / "hub")}
    return subprocess.run(
        [*command, *sizes, *flags],
        env=os.environ | places,
        capture_output=True,
        text=True,
        check=False,
    )


def test_code_runs_only_when_trusted(tmp_path: Path) -> None:
    folder, mark = tmp_path / "mine", tmp_path / "the code has run"
    make_checkpoint(folder, mark)
    refused = infer(folder)
    assert refused.returncode == 1
    assert "hint:" in refused.stderr and "--trust-remote-code" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not mark.exists()
    done = infer(folder, "--trust-remote-code")
    assert done.returncode == 0, done.stderr
    assert mark.exists() and done.stdout.strip()
