"""How much memory a compile takes: a stack of bf16 matrices far larger than the limit, streamed.

Prints, for each precision, the bytes of the checkpoint and of the container, the seconds, and by
how much the peak of resident memory (mapped pages included) grew over that before the compile.
Exits with 1 when it grew by more than 200 MB over the largest tensor.

    python benchmarks/compile_memory.py [--target cpu] [--layers 24] [--precision fp32 int4]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qeff.compile import compile_graph
from qeff.core.options import CompileOptions, ExportOptions
from qeff.core.spec import ModelSpec
from qeff.export.artifact import Graph

WIDTH, INNER = 2048, 6144
LIMIT_BYTES = 200_000_000
F32 = ir.DataType.FLOAT


def peak_bytes() -> int:
    """The largest resident size of this program so far; getrusage would count its parent's too."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def write_checkpoint(path: Path, num_layers: int) -> None:
    """One file with two matrices per layer, values drawn layer by layer."""
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        for _ in range(2 * num_layers):
            rows = rng.standard_normal((INNER, WIDTH), np.float32).astype(ml_dtypes.bfloat16)
            file.write(rows.tobytes())


def build_graph(path: Path, num_layers: int) -> Graph:
    """Make x → x + down(up(x)) of each token; weights point into the checkpoint."""
    nodes: list[ir.Node] = []
    weights: list[ir.Value] = []

    def add(kind: str, inputs: list[ir.Value], shape: list[int | str], **attrs: object) -> ir.Value:
        node = ir.node(kind, inputs, attrs)  # type: ignore[arg-type]
        nodes.append(node)
        value = node.outputs[0]
        value.name, value.shape, value.type = f"v{len(nodes)}", ir.Shape(shape), ir.TensorType(F32)
        return value

    def product(x: ir.Value, rows: int, cols: int) -> ir.Value:
        size = WIDTH * INNER * 2
        tensor = ir.ExternalTensor(
            path.name,
            size * len(weights),
            size,
            ir.DataType.BFLOAT16,
            shape=ir.Shape([rows, cols]),
            name=f"w{len(weights)}",
            base_dir=path.parent,
        )
        kind = ir.TensorType(ir.DataType.BFLOAT16)
        weight = ir.Value(name=tensor.name, shape=ir.Shape([rows, cols]), type=kind)
        weight.const_value = tensor
        weights.append(weight)
        cast = add("Cast", [weight], [rows, cols], to=int(F32))
        turned = add("Transpose", [cast], [cols, rows], perm=[1, 0])
        return add("MatMul", [x, turned], ["batch_size", "seq_len", rows])

    tokens, positions = (
        ir.Value(
            name=name,
            shape=ir.Shape(["batch_size", "seq_len"]),
            type=ir.TensorType(ir.DataType.INT64),
        )
        for name in ("input_ids", "position_ids")
    )
    rows = ir.tensor(np.ones((4, WIDTH), np.float32), name="table")
    table = ir.Value(name="table", shape=rows.shape, type=ir.TensorType(F32), const_value=rows)
    y = add("Gather", [table, tokens], ["batch_size", "seq_len", WIDTH])
    for _ in range(num_layers):
        inner = product(y, INNER, WIDTH)
        y = add("Add", [y, product(inner, WIDTH, INNER)], ["batch_size", "seq_len", WIDTH])
    y.name = "logits"
    graph = ir.Graph(
        [tokens, positions],
        [y],
        nodes=nodes,
        initializers=[table, *weights],
        opset_imports={"": 24},
    )
    spec = ModelSpec("stack", "Stack", "stack", WIDTH, num_layers, 0, None, ())
    return Graph(ir.Model(graph, ir_version=11), spec, ExportOptions(), {})


def measure(folder: Path, num_layers: int, target: str, precision: str) -> int:
    """Compile in this process, print one line, return the exit code."""
    graph = build_graph(folder / "checkpoint.bin", num_layers)
    before, start = peak_bytes(), time.perf_counter()
    options = CompileOptions(target=target, precision=precision)
    out = compile_graph(graph, options, text_files={}, provenance={}, out=folder / precision)
    seconds = time.perf_counter() - start
    grown = peak_bytes() - before
    largest = WIDTH * INNER * 4
    source = (folder / "checkpoint.bin").stat().st_size
    made = sum(item.stat().st_size for item in out.iterdir())
    print(
        f"{target} {precision}: checkpoint {source / 1e6:.0f} MB, container {made / 1e6:.0f} MB, "
        f"{seconds:.1f} s, "
        f"peak grew by {grown / 1e6:.0f} MB, the largest tensor has {largest / 1e6:.0f} MB"
    )
    return int(grown > largest + LIMIT_BYTES)


def main() -> int:
    """Write the checkpoint once, then measure every precision in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=("cpu", "ort"), default="cpu")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--precision", nargs="+", default=["fp32", "fp16", "int8", "int4"])
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder is not None:
        return measure(args.folder, args.layers, args.target, args.precision[0])
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder) / "checkpoint.bin", args.layers)
        base = [sys.executable, __file__, "--folder", folder, "--layers", str(args.layers)]
        base += ["--target", args.target]
        codes = [
            subprocess.run([*base, "--precision", precision], check=False).returncode
            for precision in args.precision
        ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
