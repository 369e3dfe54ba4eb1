"""A tiny model on disk, made once for all tests of this room, and caches for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

WORDS = "my name is the flat earth theory belief that sun rises from once upon a time in def"


def make_tokenizer(folder: Path) -> int:
    """Write a byte-level tokenizer with a chat template; returns the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    fast.save_pretrained(folder)
    return tokenizer.get_vocab_size()


def make_model(folder: Path) -> Path:
    """Write a llama of two layers with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    vocab_size = make_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.5,  # large enough that greedy text is not one token for ever
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache root that several tests fill together, so that each thing is built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QEFF_HOME", str(shared_cache))
    return shared_cache


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def environment(shared_cache: Path) -> dict[str, str]:
    """The environment of a process that a test starts."""
    root = Path(__file__).resolve().parents[2]
    own = {"QEFF_HOME": str(shared_cache), "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}
