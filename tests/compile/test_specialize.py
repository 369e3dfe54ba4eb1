"""The vendor compilers' inputs, as QEfficient writes them."""

from __future__ import annotations

import json

import pytest
import yaml

from qeff.compile.specialize import specialise, vendor_files
from qeff.core.errors import OptionValueError
from qeff.core.options import CompileOptions
from qeff.core.spec import CacheLayer, ModelSpec

SPEC = ModelSpec("m", "A", "a", 8, 2, 1, None, (CacheLayer(0, 2, 4, 4), CacheLayer(1, 2, 4, 4)))


def symbols(**options) -> list[tuple[str, dict[str, str]]]:
    raw = vendor_files(SPEC, CompileOptions(**options))["specializations.json"]
    return [(item["name"], item["symbols"]) for item in json.loads(raw)["specializations"]]


@pytest.mark.parametrize("name", ["batch_size", "full_batch_size"])
def test_every_sequence_needs_a_slot(name: str) -> None:
    with pytest.raises(OptionValueError, match=f"smaller than {name} 4"):
        CompileOptions(kv_cache_batch_size=2, **{name: 4})  # type: ignore[arg-type]


def test_plain() -> None:
    assert symbols(batch_size=2) == [
        ("Prefill", {"batch_size": "2", "seq_len": "32", "ctx_len": "128"}),
        ("Decode", {"batch_size": "2", "seq_len": "1", "ctx_len": "128"}),
    ]


def test_prompt_token_by_token_has_decode_alone() -> None:
    assert symbols(prefill_seq_len=1, ctx_len=64) == [
        ("Decode", {"batch_size": "1", "seq_len": "1", "ctx_len": "64"})
    ]


@pytest.mark.parametrize(("cache", "slots"), [(None, "4"), (6, "6")])
def test_continuous_batching_and_prefix_caching(cache: int | None, slots: str) -> None:
    found = symbols(full_batch_size=4, kv_cache_batch_size=cache)
    prefill = {"batch_size": "1", "seq_len": "32", "ctx_len": "128", "full_batch_size": slots}
    decode = {"batch_size": "4", "seq_len": "1", "ctx_len": "128", "full_batch_size": slots}
    assert found == [("Prefill", prefill | {"full_batch_exec_size": "4"}), ("Decode", decode)]
    numbers = specialise(CompileOptions(full_batch_size=4, kv_cache_batch_size=cache))
    assert [dict(item.symbols) for item in numbers] == [
        {key: int(value) for key, value in group.items()} for _, group in found
    ]


@pytest.mark.parametrize(("kv", "name"), [("auto", "float16"), ("mxint8", "mxint8")])
def test_custom_io(kv: str, name: str) -> None:
    text = vendor_files(SPEC, CompileOptions(kv_precision=kv))["custom_io.yaml"].decode()
    assert text.startswith(
        f" - IOName: past_key.0\n   Precision: {name}\n\n - IOName: past_value.0\n"
    )
    rows = yaml.safe_load(text)
    caches = ["past_key.0", "past_value.0", "past_key.1", "past_value.1"]
    assert [row["IOName"] for row in rows] == caches + [f"{c}_RetainedState" for c in caches]
    assert {row["Precision"] for row in rows} == {name}


def test_partition() -> None:
    files = vendor_files(SPEC, CompileOptions(num_devices=2, vendor={"num_cores": 14}))
    assert json.loads(files["mdp_ts_2.json"]) == {
        "connections": [{"devices": [0, 1], "type": "p2p"}],
        "partitions": [
            {
                "name": "Partition0",
                "devices": [{"deviceId": 0, "numCores": 14}, {"deviceId": 1, "numCores": 14}],
            }
        ],
    }
