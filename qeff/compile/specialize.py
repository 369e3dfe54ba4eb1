"""The fixed shapes of a graph with symbolic axes, and the vendor compilers' files that say them.

The three files have the formats that Qualcomm's compilers read, and are written into every
container, so that its graph can be taken to a card without this project.
"""

from __future__ import annotations

import json
from typing import Any

from qeff.container.format import SPECIALIZATIONS
from qeff.container.manifest import Specialisation
from qeff.core.options import CompileOptions
from qeff.core.spec import AXIS_BATCH, AXIS_CTX, AXIS_SEQ, AXIS_SLOTS, RETAINED, ModelSpec

CUSTOM_IO = "custom_io.yaml"
AXIS_EXEC = "full_batch_exec_size"
DEFAULT_NUM_CORES = 16

# The vendor runs caches in fp16 unless told otherwise; it has no fp32 there, and neither of the
# formats that stand for it here.
_KV_NAMES = {
    "auto": "float16",
    "fp16": "float16",
    "bf16": "float16",
    "fp8": "mxint8",
    "fp32": "float32",
    "mxint8": "mxint8",
}


def specialise(options: CompileOptions) -> tuple[Specialisation, ...]:
    """Prefill and decode; decode alone when the prompt goes in token by token."""
    prefill = {
        AXIS_BATCH: options.max_batch,
        AXIS_SEQ: options.prefill_seq_len,
        AXIS_CTX: options.ctx_len,
    }
    decode = {AXIS_BATCH: options.max_batch, AXIS_SEQ: 1, AXIS_CTX: options.ctx_len}
    if options.full_batch_size is not None:
        slots = {AXIS_SLOTS: options.num_slots}
        prefill = {**prefill, AXIS_BATCH: 1, **slots, AXIS_EXEC: options.full_batch_size}
        decode = {**decode, **slots}
    elif options.prefill_seq_len == 1:
        return (Specialisation("Decode", decode),)
    return Specialisation("Prefill", prefill), Specialisation("Decode", decode)


def vendor_files(spec: ModelSpec, options: CompileOptions) -> dict[str, bytes]:
    """specializations.json, custom_io.yaml and mdp_ts_<n>.json by name."""
    num_devices = options.num_devices
    return {
        SPECIALIZATIONS: _specializations_json(options),
        CUSTOM_IO: _custom_io_yaml(spec, options.kv_precision),
        f"mdp_ts_{num_devices}.json": _partition_json(num_devices, options),
    }


def _specializations_json(options: CompileOptions) -> bytes:
    items = [
        {"name": item.name, "symbols": {key: str(value) for key, value in item.symbols.items()}}
        for item in specialise(options)
    ]
    return _encode({"specializations": items})


def _custom_io_yaml(spec: ModelSpec, kv_precision: str) -> bytes:
    names = spec.cache_names()
    blocks = [
        f" - IOName: {name}\n   Precision: {_KV_NAMES[kv_precision]}\n"
        for name in [*names, *(name + RETAINED for name in names)]
    ]
    return "\n".join(blocks).encode()


def _partition_json(num_devices: int, options: CompileOptions) -> bytes:
    num_cores = int(options.vendor.get("num_cores", DEFAULT_NUM_CORES))
    devices = [{"deviceId": i, "numCores": num_cores} for i in range(num_devices)]
    return _encode(
        {
            "connections": [{"devices": list(range(num_devices)), "type": "p2p"}],
            "partitions": [{"name": "Partition0", "devices": devices}],
        }
    )


def _encode(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()
