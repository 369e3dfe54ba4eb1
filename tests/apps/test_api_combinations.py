"""The Python class: which parameters go together, as QEfficient documents it."""

from __future__ import annotations

import inspect
import logging

import pytest

import qeff
import QEfficient
from qeff.apps import api
from qeff.core.options import CompileOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CompileOptions]:
    """The options that reach the pipeline, which is not run."""
    seen: list[CompileOptions] = []

    def build(location, export_options, options, *, out=None):
        seen.append(options)
        return "container"

    monkeypatch.setattr(api, "build", build)
    return seen


def load(tiny, **parameters) -> qeff.QEFFAutoModelForCausalLM:
    return qeff.QEFFAutoModelForCausalLM.from_pretrained(str(tiny), **parameters)


TARGET_MODEL = {"speculative_model_type": "target"}


@pytest.mark.parametrize(
    ("loading", "compiling", "error"),
    [
        ({"continuous_batching": True}, {}, TypeError),
        ({"continuous_batching": True}, {"prefill_only": True}, ValueError),
        ({}, {"prefill_only": "yes"}, TypeError),
        ({"qaic_config": TARGET_MODEL}, {}, TypeError),
        (
            {"qaic_config": TARGET_MODEL},
            {"num_speculative_tokens": 3, "prefill_seq_len": 3},
            ValueError,
        ),
        (
            {"qaic_config": {**TARGET_MODEL, "include_sampler": True}},
            {"num_speculative_tokens": 3},
            ValueError,
        ),
        (
            {"qaic_config": TARGET_MODEL},
            {"num_speculative_tokens": [1, 3], "comp_ctx_lengths_decode": [64, 128]},
            NotImplementedError,
        ),
        ({}, {"kv_cache_prefix": "a-b"}, ValueError),
        ({}, {"prefill_seq_length": 8}, TypeError),
        ({}, {"ctx_len": "128"}, TypeError),
        ({}, {"ctx_len": 0}, ValueError),
        ({}, {"target": "tpu"}, qeff.QeffError),
        ({}, {"precision": "int8", "mxfp6_matmul": True}, ValueError),
    ],
)
def test_refused_combinations(tiny, cache, asked, loading, compiling, error) -> None:
    model = load(tiny, **loading)
    with pytest.raises(error) as caught:
        model.compile(**compiling)
    assert isinstance(caught.value, qeff.QeffError)
    assert asked == []


@pytest.mark.parametrize(
    ("loading", "compiling", "options"),
    [
        ({}, {}, {"prefill_seq_len": 32, "ctx_len": 128, "batch_size": 1, "vendor": {}}),
        ({}, {"num_speculative_tokens": 3}, {}),
        ({"qaic_config": TARGET_MODEL}, {"num_speculative_tokens": 3}, {}),
        ({"continuous_batching": True}, {"full_batch_size": 4}, {"full_batch_size": 4}),
        (
            {"continuous_batching": True},
            {"full_batch_size": 4, "kv_cache_batch_size": 8},
            {"kv_cache_batch_size": 8},
        ),
        ({}, {"num_cores": 14, "mxfp6_matmul": True}, {"precision": "mxfp6"}),
        ({}, {"num_cores": 14, "mxfp6": True, "enable_qnn": True}, {"precision": "mxfp6"}),
        ({}, {"mxint8_kv_cache": True}, {"kv_precision": "mxint8"}),
        ({}, {"target": "ort", "precision": "int8"}, {"target": "ort", "precision": "int8"}),
        ({}, {"mos": 1, "aic_enable_depth_first": True, "dynamo": True}, {"vendor": {}}),
    ],
)
def test_accepted_combinations(tiny, cache, asked, loading, compiling, options) -> None:
    assert load(tiny, **loading).compile(**compiling) == "container"
    (got,) = asked
    for name, value in options.items():
        assert getattr(got, name) == value, name


def test_full_batch_size_without_continuous_batching_is_ignored(tiny, cache, asked, caplog) -> None:
    with caplog.at_level(logging.WARNING, "qeff"):
        load(tiny).compile(full_batch_size=4)
    assert asked[0].full_batch_size is None
    assert "full_batch_size is ignored" in caplog.text


def test_options_of_the_card_are_told_in_one_line(tiny, cache, asked, caplog) -> None:
    with caplog.at_level(logging.WARNING, "qeff"):
        load(tiny).compile(num_cores=14, mos=1)
    (record,) = caplog.records
    assert "running on cpu" in record.message and "num_cores" in record.message


def test_a_mistyped_keyword_names_the_nearest(tiny, cache, asked) -> None:
    for typed, meant in (("ctx_length", "ctx_len"), ("num_core", "num_cores")):
        with pytest.raises(TypeError, match=f"did you mean '{meant}'"):
            load(tiny).compile(**{typed: 4})
    with pytest.raises(TypeError, match="unknown argument 'revison'"):
        load(tiny, revison="x")


def test_generate_errors(tiny, cache, asked) -> None:
    model = load(tiny)
    with pytest.raises(TypeError, match="compile first"):
        model.generate(prompts=["My name is"])
    model.compile()
    with pytest.raises(NotImplementedError):
        model.generate(prompts=["My name is"], runtime_ai100=False)
    with pytest.raises(TypeError, match="needs prompts"):
        model.generate()
    with pytest.raises(TypeError, match="did you mean 'temperature'"):
        model.generate(prompts=["My name is"], temperatur=1)
    with pytest.raises(NotImplementedError):
        model.generate(prompts=["My name is"], return_pdfs=True)
    with pytest.raises(NotImplementedError):
        model.export(decode_only=True)


def test_documented_defaults() -> None:
    parameters = inspect.signature(qeff.QEFFAutoModelForCausalLM.compile).parameters
    documented = {
        "onnx_path": None,
        "compile_dir": None,
        "prefill_seq_len": 32,
        "ctx_len": 128,
        "batch_size": 1,
        "full_batch_size": None,
        "kv_cache_batch_size": None,
        "num_devices": 1,
        "mxfp6_matmul": False,
        "mxint8_kv_cache": False,
        "num_speculative_tokens": None,
        "prefill_only": None,
        "kv_cache_prefix": None,
    }
    assert {name: parameters[name].default for name in documented} == documented
    loading = inspect.signature(qeff.QEFFAutoModelForCausalLM.from_pretrained).parameters
    assert list(loading)[:3] == [
        "pretrained_model_name_or_path",
        "continuous_batching",
        "qaic_config",
    ]
    running = inspect.signature(qeff.QEFFAutoModelForCausalLM.generate).parameters
    assert list(running)[1:5] == ["tokenizer", "prompts", "device_id", "runtime_ai100"]


def test_other_ways_in(tiny, cache) -> None:
    assert QEfficient.QEFFAutoModelForCausalLM is qeff.QEFFAutoModelForCausalLM
    with pytest.raises(AttributeError, match="offered"):
        _ = QEfficient.QEFFAutoModelOfAnotherKind
    with pytest.raises(qeff.QeffError, match="no checkpoint at"):
        qeff.QEFFAutoModelForCausalLM.from_pretrained("./nowhere")
    with pytest.raises(TypeError, match="is not a causal language model"):
        qeff.QEFFAutoModelForCausalLM(object())
    with pytest.raises(TypeError, match="did you mean 'speculative_model_type'"):
        load(tiny, qaic_config={"speculative_model": "target"})
    assert "tiny-llama" in repr(load(tiny))


def test_result_prints_four_lines() -> None:
    import numpy as np

    perf = qeff.PerfMetrics(prefill_time=0.5, decode_perf=10.0, total_perf=8.0, total_time=4.0)
    info = qeff.CloudAI100ExecInfo(2, ["a", "b"], np.zeros((2, 8), np.int64), perf)
    lines = repr(info).splitlines()
    assert len(lines) == 4
    assert "20.00 tokens/s" in lines[1] and "16.00 tokens/s" in lines[2]  # both sequences together
