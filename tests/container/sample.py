"""A small container written by hand, without the build half."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qeff.container import ContainerWriter, Manifest, WeightGroup, WeightSpec
from qeff.container.format import CERTIFICATE, encode_json
from qeff.container.manifest import Port, Specialisation
from qeff.core.options import CompileOptions
from qeff.core.spec import CacheLayer, ModelSpec

SPEC = ModelSpec("tiny", "TinyForCausalLM", "tiny", 32, 1, 100, None, (CacheLayer(0, 2, 4, 4),))
OPTIONS = CompileOptions(target="reference", ctx_len=16, prefill_seq_len=4)
SYMBOLS = {"batch_size": 1, "seq_len": 4, "ctx_len": 16}


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "a": rng.standard_normal((3, 5)).astype(np.float32),
        "scalar": np.array(2.5, np.float64),
        "empty": np.zeros((0, 4), np.float32),
        "bytes": rng.integers(0, 255, (7, 3)).astype(np.uint8),
        "half": rng.standard_normal((2, 3, 4)).astype(np.float16),
        "turned": rng.standard_normal((6, 4)).astype(np.float32).T,
    }


def groups(tensors: dict[str, np.ndarray]) -> list[WeightGroup]:
    from qeff.core.formats import format_of

    return [
        WeightGroup(
            (WeightSpec(name, array.shape, format_of(array.dtype).name),), lambda a=array: (a,)
        )
        for name, array in tensors.items()
    ]


def fill(writer: ContainerWriter, seed: int = 0) -> Manifest:
    writer.write_bytes("program.json", b'{"ops": []}\n')
    writer.write_bytes("tokenizer.json", b"{}")
    writer.write_weights(groups(arrays(seed)))
    writer.write_bytes(CERTIFICATE, encode_json({"export": {"max_abs_error": 1e-6}}))
    return Manifest(
        model=SPEC,
        target="reference",
        precision={"asked": "fp32"},
        options=OPTIONS,
        specialisations=(Specialisation("Prefill", SYMBOLS),),
        inputs=(Port("input_ids", "i64", ("batch_size", "seq_len")),),
        outputs=(Port("logits", "f32", ("batch_size", 32)),),
        provenance={"version": "0"},
        files=writer.files,
    )


def write(out: Path, seed: int = 0) -> Path:
    with ContainerWriter(out) as writer:
        return writer.commit(fill(writer, seed))
