"""A GGUF file with random Q4_0 weights in the shape of a Llama config, for llama.cpp to measure.

    python benchmarks/random_gguf.py CONFIG.json OUT.gguf

What ``qeff bench CONFIG --load-format dummy`` is for us: every matrix has 4 bits, the table of
tokens is the head as well, and there is no tokenizer. Knows nothing of other architectures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

BLOCK = np.dtype([("scale", np.float16), ("codes", np.uint8, 16)])  # 32 weights of Q4_0
ARCH = "llama"


def main() -> int:
    """Write the file."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    config = json.loads(Path(sys.argv[1]).read_text())
    assert config["model_type"] == ARCH and config["tie_word_embeddings"], "a tied llama"
    writer = GGUFWriter(sys.argv[2], ARCH)
    write_header(writer, config)
    draws = np.random.default_rng(0)
    for name, rows, cols in matrices(config):
        writer.add_tensor(
            name, random_matrix(draws, rows, cols), raw_dtype=GGMLQuantizationType.Q4_0
        )
    for name in norms(config):
        writer.add_tensor(name, np.ones(config["hidden_size"], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


def write_header(writer: GGUFWriter, config: dict[str, Any]) -> None:
    """The sizes under the names of the format."""
    writer.add_name("random")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def matrices(config: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Name, rows and columns of each."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    found = [("token_embd.weight", config["vocab_size"], hidden)]
    for layer in range(config["num_hidden_layers"]):
        shapes = {
            "attn_q": (queries, hidden),
            "attn_k": (keys, hidden),
            "attn_v": (keys, hidden),
            "attn_output": (hidden, queries),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }
        found += [(f"blk.{layer}.{name}.weight", *shape) for name, shape in shapes.items()]
    return found


def norms(config: dict[str, Any]) -> list[str]:
    """Names of the vectors."""
    found = ["output_norm.weight"]
    for layer in range(config["num_hidden_layers"]):
        found += [f"blk.{layer}.attn_norm.weight", f"blk.{layer}.ffn_norm.weight"]
    return found


def random_matrix(draws: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """Blocks of one scale and any codes, as bytes."""
    blocks = np.empty((rows, cols // 32), BLOCK)
    blocks["scale"] = 1 / (4 * np.sqrt(cols))
    blocks["codes"] = draws.integers(0, 256, (rows, cols // 32, 16), np.uint8)
    return blocks.view(np.uint8).reshape(rows, -1)


if __name__ == "__main__":
    sys.exit(main())
