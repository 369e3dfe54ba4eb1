"""Checkpoints with repeated heads of keys and values compute what the originals do.

Small models of several families are saved in shards, rewritten, loaded by transformers and compared
in eager PyTorch; models that keep their heads in another way are refused, and nothing is left.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from qeff.apps.cli.main import main
from qeff.apps.kv_heads import replicate_kv_heads
from qeff.core.errors import OptionValueError, QeffError, UnsupportedModel
from qeff.transform.families import register_family
from qeff.transform.quiet import quiet_transformers
from qeff.transform.reference import random_model

SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 1,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},  # biases
    "olmo2": {},  # a norm over all heads of keys
    "qwen3": {"head_dim": 16},  # a norm for each head
    "llama_swiftkv": {"num_hidden_layers": 2, "num_key_value_layers": 1},
}


def save(model_type: str, folder: Path, **sizes: Any) -> Any:
    register_family(model_type)
    model = random_model(AutoConfig.for_model(model_type, **{**SMALL, **sizes}))
    with quiet_transformers():
        model.save_pretrained(folder, max_shard_size="20KB")
    (folder / "chat_template.jinja").write_bytes(b"{{ words }}")
    (folder / "pytorch_model.bin").write_bytes(b"weights in another form")
    return model


def logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 30)[None]).logits[0].numpy()


@pytest.mark.parametrize("model_type", CASES)
def test_the_result_loads_and_computes_the_same(model_type: str, tmp_path: Path) -> None:
    model = save(model_type, tmp_path / "old", **CASES[model_type])
    out = replicate_kv_heads(tmp_path / "old", 2, tmp_path / "new")
    with quiet_transformers():
        again = AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager")
    assert again.config.num_key_value_heads == 4
    np.testing.assert_allclose(logits(again), logits(model), rtol=1e-4, atol=1e-4)
    assert (out / "chat_template.jinja").read_bytes() == b"{{ words }}"
    assert not (out / "pytorch_model.bin").exists()


def test_shards_keep_their_tensors_and_heads_stand_beside_their_copies(tmp_path: Path) -> None:
    save("llama", tmp_path / "old")
    replicate_kv_heads(tmp_path / "old", 4, tmp_path / "new")
    names = sorted(path.name for path in (tmp_path / "old").glob("*.safetensors"))
    assert len(names) > 2
    num_bytes = 0
    for name in names:
        files = [safe_open(tmp_path / which / name, "np") for which in ("old", "new")]
        assert files[0].keys() == files[1].keys()
        assert files[0].metadata() == files[1].metadata()
        for key in files[0].keys():  # noqa: SIM118
            old, new = (file.get_tensor(key) for file in files)
            num_bytes += new.nbytes
            if "k_proj" in key or "v_proj" in key:
                heads = old.reshape(2, 8, -1).repeat(4, axis=0)
                old = heads.reshape(-1, *old.shape[1:])
            np.testing.assert_array_equal(old, new)
    index = json.loads((tmp_path / "new" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == num_bytes


@pytest.mark.parametrize(
    ("repeat", "reason", "hint"),
    [(3, "cannot share", "2, 4"), (8, "cannot share", "2, 4"), (1, "times 1", "2, 4")],
)
def test_numbers_that_do_not_fit(repeat: int, reason: str, hint: str, tmp_path: Path) -> None:
    save("llama", tmp_path / "old")
    with pytest.raises(OptionValueError, match=reason) as error:
        replicate_kv_heads(tmp_path / "old", repeat, tmp_path / "new")
    assert hint in str(error.value.hint)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("model_type", "sizes", "reason"),
    [
        ("phi3", {}, r"qkv_proj.weight holds more than heads"),
        ("gpt2", {"num_key_value_heads": None}, "counts no heads"),
        ("llama", {"num_key_value_heads": 8}, "cannot share"),
    ],
)
def test_models_that_keep_heads_otherwise(
    model_type: str, sizes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    save(model_type, tmp_path / "old", **sizes)
    with pytest.raises(QeffError, match=reason):
        replicate_kv_heads(tmp_path / "old", 2, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


def test_a_quantised_checkpoint_is_refused(tmp_path: Path) -> None:
    save("llama", tmp_path / "old")
    file = tmp_path / "old" / "config.json"
    config = {**json.loads(file.read_text()), "quantization_config": {"quant_method": "gptq"}}
    file.write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="quantised"):
        replicate_kv_heads(tmp_path / "old", 2, tmp_path / "new")


def test_a_result_that_differs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("llama", tmp_path / "old")
    from qeff.sources import rewrite

    copied = rewrite._copy

    def tiled(source, target, size, repeat):  # all heads, then all again
        if repeat is None:
            return copied(source, target, size, repeat)
        target.write(source.read(size) * repeat.times)

    monkeypatch.setattr(rewrite, "_copy", tiled)
    with pytest.raises(UnsupportedModel, match="change by"):
        replicate_kv_heads(tmp_path / "old", 2, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    save("llama", tmp_path / "old")
    with pytest.raises(OptionValueError, match="is there already"):
        replicate_kv_heads(tmp_path / "old", 2, tmp_path / "old")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("llama", tmp_path / "old")
    words = ["replicate-kv-heads", str(tmp_path / "old"), "-o", str(tmp_path / "new"), "--quiet"]
    assert main(["transform", *words, "--repeat", "2"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "new")
    assert main(["transform", *words]) != 0
    assert "is there already" in capsys.readouterr().err
