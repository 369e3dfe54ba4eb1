"""Export time, memory and bytes for Llama shapes, with no weight bytes on disk.

Each shape is a checkpoint folder whose safetensors file is sparse: the header is real, the
weights are holes. So the whole way through the doors is measured, and a copy of the weights would
show at once in the bytes written.

    python benchmarks/export.py [135m 1b 8b]
"""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SHAPES = {
    "135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "1b": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "rope_parameters": LLAMA3_ROPE,
    },
    "8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "rope_parameters": LLAMA3_ROPE,
    },
}
# The largest shape must stay below these on two cores. A small one is checked with its own weights,
# which takes more memory than checking a large one with a twin.
LIMIT_SHAPE, LIMIT_SECONDS, LIMIT_RSS = "8b", 60, 2 << 30


def tensor_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama checkpoint as the hub has them."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    wide, narrow = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = {
            "self_attn.q_proj": (wide, hidden),
            "self_attn.k_proj": (narrow, hidden),
            "self_attn.v_proj": (narrow, hidden),
            "self_attn.o_proj": (hidden, wide),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def write_sparse_checkpoint(folder: Path, config: dict) -> int:
    """A checkpoint with a real header and holes for weights; returns its apparent size."""
    header, offset = {}, 0
    for name, shape in tensor_shapes(config).items():
        length = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + length]}
        offset += length
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    full = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(full | config))
    return offset


def measure(shape: str) -> dict:
    """Export one shape in this process and report what it took."""
    from qeff.core.options import ExportOptions
    from qeff.export import export
    from qeff.sources import open_source
    from qeff.transform import prepare

    with tempfile.TemporaryDirectory() as temp:
        folder, out = Path(temp, shape), Path(temp, "graph")
        folder.mkdir()
        out.mkdir()
        weights = write_sparse_checkpoint(folder, SHAPES[shape])
        start = time.perf_counter()
        graph = export(prepare(open_source(str(folder)), ExportOptions()))
        graph.save(out)
        seconds = time.perf_counter() - start
        written = sum(path.stat().st_size for path in out.rglob("*") if path.stat().st_nlink == 1)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "shape": shape,
        "weights_bytes": weights,
        "seconds": seconds,
        "peak_rss_bytes": rss,
        "written_bytes": written,
        "nodes": len(graph.model.graph),
        "certificate": graph.certificate.get("method"),
    }


def main(shapes: list[str]) -> int:
    """Measure each shape in a process of its own and print a table."""
    print(f"{'shape':>6} {'weights':>9} {'seconds':>8} {'peak RSS':>9} {'written':>9} {'nodes':>6}")
    for shape in shapes:
        child = [sys.executable, __file__, "--one", shape]
        done = subprocess.run(child, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.stderr.write(done.stderr)
            return 1
        row = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{shape:>6} {row['weights_bytes'] / 1e9:7.2f}GB {row['seconds']:8.1f} "
            f"{row['peak_rss_bytes'] / 2**20:6.0f}MiB {row['written_bytes'] / 1e3:7.0f}kB "
            f"{row['nodes']:6}",
            flush=True,
        )
        over = row["seconds"] > LIMIT_SECONDS or row["peak_rss_bytes"] > LIMIT_RSS
        if shape == LIMIT_SHAPE and over:
            print(f"{shape}: over the limit of {LIMIT_SECONDS} s or {LIMIT_RSS >> 30} GiB")
            return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        sys.exit(main(sys.argv[1:] or list(SHAPES)))
