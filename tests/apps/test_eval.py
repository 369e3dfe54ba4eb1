"""Perplexity and KL divergence: the windows, the numbers against transformers and plain numpy."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qeff.apps.cli.main import main
from qeff.apps.evaluate import plot
from qeff.apps.evaluate.divergence import score
from qeff.apps.evaluate.float_form import float_form
from qeff.apps.evaluate.lane import MAX_LOGIT_BYTES, Lane, Phase
from qeff.apps.evaluate.measure import Passage, evaluate
from qeff.apps.evaluate.phases import parse_phases
from qeff.apps.evaluate.table import lines
from qeff.apps.evaluate.windows import Window, cut
from qeff.apps.pipeline import build, graph_of, opened
from qeff.compile import compile_graph
from qeff.compile.dequantised import dequantise
from qeff.container import Container, Program
from qeff.core.divergence import log_softmax
from qeff.core.errors import OptionValueError, RequestError, ResourceError, UsageError
from qeff.core.options import CompileOptions, ExportOptions
from qeff.sources import locate

CTX = 32
WORDS = "the flat earth theory is the belief that the sun rises from a def once upon a time, " * 6


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(WORDS)
    return path


@pytest.fixture(scope="module")
def eager(tiny: Path):
    """Log-probabilities [T, vocab] that transformers gives some tokens, run from an empty cache."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()

    def run(ids: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(ids)[None]).logits[0].double()
        return torch.log_softmax(logits, -1).numpy()

    run.model = model
    return run


@pytest.fixture(scope="module")
def ids(tiny: Path) -> np.ndarray:
    from transformers import AutoTokenizer

    return np.array(AutoTokenizer.from_pretrained(tiny)(WORDS).input_ids)


def command(tiny: Path, text: Path, measure: str, *words: str) -> list[str]:
    model = ["--model-name", str(tiny), "--text", str(text), "--ctx-len", str(CTX)]
    return ["eval", measure, *model, "--target", "ort", *words]


def container(tiny: Path, **options) -> Container:
    chosen = CompileOptions(target="ort", ctx_len=CTX, prefill_seq_len=CTX, **options)
    return Container.open(build(tiny, ExportOptions(), chosen))


def phases_of(capsys) -> dict[str, dict]:
    report = json.loads(capsys.readouterr().out)
    return {phase["phase"]: phase for phase in report["phases"]}


# Windows.


def test_windows_side_by_side_score_their_second_halves() -> None:
    assert cut(25, 8) == [Window(0, 8, 5), Window(8, 16, 13), Window(16, 24, 21)]
    assert [window.num_scored for window in cut(25, 8)] == [3, 3, 3]  # as llama.cpp: ctx/2 − 1


def test_sliding_windows_score_every_token_once() -> None:
    assert cut(20, 8, 4) == [
        Window(0, 8, 1), Window(4, 12, 8), Window(8, 16, 12), Window(12, 20, 16),
    ]  # fmt: skip
    for num_tokens, ctx_len, stride in ((2, 8, 3), (9, 8, 8), (33, 8, 5), (40, 10, 10)):
        windows = cut(num_tokens, ctx_len, stride)
        scored = [i for window in windows for i in range(window.first, window.stop)]
        # Side by side, the first token of each window has nothing before it.
        lost = range(0, num_tokens, ctx_len) if stride == ctx_len else (0,)
        assert scored == [i for i in range(num_tokens) if i not in lost]
        assert all(window.stop - window.start <= ctx_len for window in windows)


def test_bad_windows_are_refused() -> None:
    with pytest.raises(RequestError, match="do not fill one window"):
        cut(7, 8)
    with pytest.raises(OptionValueError, match="larger than the window"):
        cut(100, 8, 9)
    with pytest.raises(RequestError, match="1 tokens"):
        cut(1, 8, 4)
    with pytest.raises(OptionValueError, match="too short"):
        cut(100, 3)


# Numbers.


@pytest.mark.parametrize("stride", [None, 8, CTX])
def test_perplexity_is_that_of_transformers(
    tiny, cache, text, eager, ids, capsys, stride: int | None
) -> None:
    losses: list[float] = []
    if stride is None:
        for start in range(0, len(ids) - CTX + 1, CTX):
            part = ids[start : start + CTX]
            found = eager(part)
            losses += [-found[t - 1, part[t]] for t in range(CTX // 2 + 1, CTX)]
    else:  # the loop of Hugging Face's guide
        end = 0
        for start in range(0, len(ids), stride):
            last, end = end, min(start + CTX, len(ids))
            part = ids[start:end]
            found = eager(part)
            losses += [-found[t - 1, part[t]] for t in range(max(1, last - start), len(part))]
            if end == len(ids):
                break
    words = ["--json", "--phases", "target"] + (["--stride", str(stride)] if stride else [])
    assert main(command(tiny, text, "perplexity", *words)) == 0
    found = phases_of(capsys)["target"]
    assert found["tokens_scored"] == len(losses)
    assert found["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-4)
    assert found["kl_nats"] is None and found["top1_agreement"] is None


def test_the_beginning_of_a_text_stands_in_every_window() -> None:
    passage = Passage(ids=np.arange(10, 26), windows=cut(16, 8), bos=3)
    assert [passage.tokens(window).tolist() for window in passage.windows] == [
        [3, *range(11, 18)],
        [3, *range(19, 26)],
    ]
    assert passage.ids[0] == 10  # the text itself is left alone


def test_a_container_is_no_distance_from_itself(tiny, cache, ids) -> None:
    opened = container(tiny, precision="fp32")
    passage = Passage(ids=ids, windows=cut(len(ids), CTX))
    first, second = evaluate(
        [Phase("float", opened), Phase("target", opened)], passage, has_reference=True
    )
    assert np.array_equal(first.nll, second.nll)
    assert second.kl is not None and not second.kl.any()
    assert second.is_same_top is not None and second.is_same_top.all()


def test_kl_is_that_of_plain_numpy(tiny, cache, text, ids, capsys) -> None:
    assert main(command(tiny, text, "kl", "--precision", "int4", "--json")) == 0
    found = phases_of(capsys)
    reference, target = container(tiny, precision="fp32"), container(tiny, precision="int4")
    expected, same, nll = [], [], []
    for window in cut(len(ids), CTX):
        tokens = ids[window.start : window.stop]
        rows = np.arange(window.first - window.start - 1, CTX - 1)
        made = []
        for one in (reference, target):
            lane = Lane(Phase("x", one), CTX, None)
            logits = lane.step(tokens, 0, rows).astype(np.float64)
            lane.close()
            made.append(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
        p, q = made
        expected += (p * np.log(p / q)).sum(-1).tolist()
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
        nll += (-np.log(q[np.arange(len(rows)), tokens[rows + 1]])).tolist()
    kl = found["target"]["kl_nats"]
    assert kl["mean"] == pytest.approx(np.mean(expected), rel=1e-5) and kl["mean"] > 0.01
    assert kl["max"] == pytest.approx(np.max(expected), rel=1e-5)
    assert kl["p99"] == pytest.approx(np.quantile(expected, 0.99), rel=1e-5)
    assert found["target"]["top1_agreement"] == np.mean(same) < 1
    assert found["target"]["perplexity"] == pytest.approx(math.exp(np.mean(nll)), rel=1e-6)
    assert found["float"]["kl_nats"]["max"] == 0 and found["float"]["top1_agreement"] == 1
    assert 0 < found["quantised"]["kl_nats"]["mean"] != kl["mean"]


def test_steps_of_any_width_give_the_same(tiny, cache, ids, monkeypatch) -> None:
    opened = container(tiny, precision="fp32")
    passage = Passage(ids=ids, windows=cut(len(ids), CTX, 20))
    (whole,) = evaluate([Phase("target", opened)], passage, has_reference=False)
    small = opened.manifest.model.vocab_size * 4 * 5  # room for the logits of five tokens
    monkeypatch.setattr("qeff.apps.evaluate.lane.MAX_LOGIT_BYTES", small)
    (parts,) = evaluate([Phase("target", opened)], passage, has_reference=False)
    assert len(whole.nll) == len(ids) - 1 and small < MAX_LOGIT_BYTES
    np.testing.assert_allclose(parts.nll, whole.nll, rtol=0, atol=1e-4)


def test_scores_of_extreme_logits_are_numbers() -> None:
    one = np.array([[0.0, -1e30, 5.0], [1e4, 0.0, -1e4]], np.float32)
    two = np.array([[0.0, 3.0, 5.0], [0.0, 0.0, 0.0]], np.float32)
    a, b = score([one, two], np.array([2, 0]), has_reference=True)
    assert a.kl is not None and b.kl is not None
    assert a.kl.tolist() == [0.0, 0.0] and np.isfinite(b.kl).all()
    assert b.kl[1] == pytest.approx(math.log(3)) and b.nll[1] == pytest.approx(math.log(3))
    assert np.exp(log_softmax(two)).sum(-1) == pytest.approx([1, 1])


# Phases.


def test_the_quantised_phase_is_the_model_with_rounded_weights(
    tiny, cache, text, eager, ids, capsys
) -> None:
    """The weights of an fp16 container are fp16; in float arithmetic that is all that differs."""
    import copy

    import torch

    rounded = copy.deepcopy(eager.model)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.half().float())
    losses = []
    for start in range(0, len(ids) - CTX + 1, CTX):
        part = torch.tensor(ids[start : start + CTX])
        with torch.no_grad():
            found = torch.log_softmax(rounded(input_ids=part[None]).logits[0].double(), -1)
        losses += [-float(found[t - 1, part[t]]) for t in range(CTX // 2 + 1, CTX)]
    assert main(command(tiny, text, "perplexity", "--precision", "fp16", "--json")) == 0
    found = phases_of(capsys)
    assert math.log(found["quantised"]["perplexity"]) == pytest.approx(np.mean(losses), abs=2e-6)
    assert abs(math.log(found["target"]["perplexity"]) - np.mean(losses)) > 2e-6
    assert found["quantised"]["precision"]["arithmetic"] == "fp32"


def test_the_float_form_of_block_products_multiplies_dequantised_weights(tiny, cache, ids) -> None:
    import onnx_ir as ir

    from qeff.compile.quantize.blocks import unpack

    path = float_form(container(tiny, precision="int8", kv_precision="fp16"))
    assert path is not None
    opened = Container.open(path)
    assert opened.manifest.provenance["float_form_of"]
    assert {port.dtype for port in opened.manifest.inputs} == {"i64", "f32"}
    model = ir.load(opened.file("program.onnx"))
    products = [node for node in model.graph if node.op_type == "MatMulNBits"]
    assert products and all(n.attributes["accuracy_level"].as_int() == 0 for n in products)
    before = _logits(opened, ids[:CTX])
    # The same graph with plain products of the matrices that the blocks stand for.
    for node in products:
        data, scales = (opened.weight(str(node.inputs[i].name)) for i in (1, 2))
        cols, rows = (node.attributes[name].as_int() for name in ("K", "N"))
        matrix = unpack(np.asarray(data), np.asarray(scales), cols).reshape(rows, cols)
        value = ir.val(f"{node.name}.plain", const_value=ir.tensor(matrix.T.copy()))
        model.graph.register_initializer(value)
        plain = ir.node("MatMul", [node.inputs[0], value])
        model.graph.insert_before(node, plain)
        node.outputs[0].replace_all_uses_with(plain.outputs[0], replace_graph_outputs=True)
        plain.outputs[0].name = node.outputs[0].name
        model.graph.remove(node, safe=True)
    import onnxruntime

    weights = {str(n): v for n, v in model.graph.initializers.items()}
    for name, value in weights.items():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.tensor(np.array(opened.weight(name)))
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    feeds = {
        port.name: np.zeros((1, port.shape[1], CTX, port.shape[3]), np.float32)
        for port in session.get_inputs()
        if port.name.startswith("past_")
    }
    feeds |= {"input_ids": ids[None, :CTX], "position_ids": np.arange(CTX)[None]}
    feeds |= {"logits_index": np.arange(CTX)}
    (after,) = session.run(["logits"], feeds)
    np.testing.assert_allclose(after.reshape(before.shape), before, rtol=0, atol=2e-3)


def _logits(opened: Container, tokens: np.ndarray) -> np.ndarray:
    lane = Lane(Phase("x", opened), len(tokens), None)
    try:
        return lane.step(tokens, 0, np.arange(len(tokens)))
    finally:
        lane.close()


@pytest.mark.parametrize("precision", ["fp16", "int4"])
def test_the_float_form_of_panels_holds_what_they_stand_for(
    tiny, cache, ids, tmp_path, precision: str
) -> None:
    location = locate(tiny)
    graph = graph_of(opened(location), location, ExportOptions())
    options = CompileOptions(target="cpu", ctx_len=CTX, precision=precision)
    made = compile_graph(graph, options, text_files={}, provenance={}, out=tmp_path / "packed")
    packed = Container.open(made)
    path = float_form(packed)
    assert path is not None and float_form(packed) == path
    wide = Container.open(path)
    program = Program.from_json(json.loads(packed.read_bytes("program.json")))
    _, arrays = dequantise(program, packed.weight)
    assert sorted(arrays) == sorted(wide.weight_names)
    for name, array in arrays.items():
        assert np.array_equal(wide.weight(name), array), name
    far = np.abs(_logits(wide, ids[:CTX]) - _logits(container(tiny), ids[:CTX])).max()
    assert 0 < far < (0.1 if precision == "fp16" else 100)
    assert wide.manifest.target == "reference"


def test_equal_phases_are_run_once(tiny, cache, text, capsys) -> None:
    assert main(command(tiny, text, "perplexity", "--precision", "fp32", "--json")) == 0
    found = phases_of(capsys)
    assert found["quantised"]["same_as"] == "float"
    assert found["quantised"]["perplexity"] == found["float"]["perplexity"]
    words = ["--precision", "fp32", "--kv-precision", "fp32"]
    assert main(command(tiny, text, "perplexity", *words)) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[:3] == ["phase", "target", "weights"] and len(out) == 4
    assert out[3].split()[-2:] == ["as", "float"]  # the same container


def test_every_target_with_a_session_is_evaluated(tiny, cache, text, capsys) -> None:
    words = ["eval", "kl", "--model-name", str(tiny), "--text", str(text), "--ctx-len", "16"]
    limits = ["--max-windows", "2", "--phases", "float,target", "--json"]
    assert main([*words, *limits, "--target", "reference"]) == 0
    found = phases_of(capsys)
    assert found["target"]["target"] == "reference" and found["float"]["target"] == "ort"
    assert found["target"]["kl_nats"]["max"] < 1e-6 and found["target"]["tokens_scored"] == 14
    assert main([*words, *limits, "--target", "ort", "--float-target", "reference"]) == 0
    assert phases_of(capsys)["float"]["target"] == "reference"


def test_a_container_by_its_path(tiny, cache, text, capsys) -> None:
    path = str(container(tiny, precision="int8").path)
    words = ["eval", "perplexity", "--qpc-path", path, "--text", str(text), "--json"]
    assert main([*words, "--phases", "quantised,target"]) == 0  # without any checkpoint
    found = phases_of(capsys)
    assert sorted(found) == ["quantised", "target"] and found["target"]["kl_nats"] is None
    assert main([*words, "--model-name", str(tiny)]) == 0
    assert phases_of(capsys)["target"]["kl_nats"]["mean"] > 0
    assert main([*words, "--phases", "target", "--precision", "int4"]) == 2
    assert "--precision is decided when a container is compiled" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["ort", "cpu"])
def test_overrides_leave_the_float_model_alone(tiny, cache, text, capsys, target: str) -> None:
    words = ["eval", "kl", "--model-name", str(tiny), "--text", str(text), "--ctx-len", "32"]
    words += ["--precision", "fp32", "--precision-override", "*=int4", "--calibration", "none"]
    assert main([*words, "--float-target", target, "--phases", "float,target", "--json"]) == 0
    found = phases_of(capsys)
    assert set(found["float"]["precision"].values()) == {"fp32"}
    assert found["target"]["precision"]["linear"] == "int4"
    assert found["target"]["kl_nats"]["mean"] > 1e-3


def test_a_container_of_another_model(tiny, cache, text, tmp_path, capsys) -> None:
    import shutil

    other = shutil.copytree(tiny, tmp_path / "other")
    settings = json.loads((other / "generation_config.json").read_text())
    (other / "generation_config.json").write_text(json.dumps({**settings, "eos_token_id": 5}))
    path = str(container(tiny, precision="int8").path)
    words = ["eval", "kl", "--qpc-path", path, "--text", str(text), "--model-name", str(other)]
    assert main(words) == 2
    assert "was not made of other" in capsys.readouterr().err


# What a user may do wrong.


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["perplexity"], 2, "there is no text"),
        (["perplexity", "--text", "a", "--dataset", "b"], 2, "exclude each other"),
        (["perplexity", "--text", "no-such-file.txt"], 1, "cannot be read"),
        (["perplexty", "--text", "a"], 2, "perplexity"),
        (["kl", "--text", "a", "--phases", "target"], 2, "needs the phase float"),
        (["kl", "--text", "a", "--phases", "float,targt"], 2, "did you mean 'target'"),
        ([], 2, "required: perplexity|kl"),
    ],
)
def test_mistakes_are_told_before_any_work(words, code: int, said: str, capsys) -> None:
    assert main(["eval", *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and said in err


def test_texts_that_are_none(tmp_path, capsys) -> None:
    path = tmp_path / "text"
    for data, said in ((b"\xff\xfe\x00", "not UTF-8"), (b" \n", "holds no text")):
        path.write_bytes(data)
        assert main(["eval", "perplexity", "--text", str(path)]) == 1
        assert said in capsys.readouterr().err


def test_a_text_that_is_too_short(tiny, cache, tmp_path, capsys) -> None:
    path = tmp_path / "short.txt"
    path.write_text("my name")
    assert main(command(tiny, path, "perplexity", "--phases", "target")) == 1
    assert "do not fill one window of 32" in capsys.readouterr().err


def test_missing_libraries_are_named(tiny, text, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert main(command(tiny, text, "perplexity", "--plot", "x.png")) == 1
    assert "pip install 'qeff[plot]'" in capsys.readouterr().err
    with pytest.raises(ResourceError, match="matplotlib"):
        plot.check()
    assert main(["eval", "perplexity", "--dataset", "wikitext"]) == 1
    assert "pip install datasets" in capsys.readouterr().err


def test_a_data_set_is_joined(monkeypatch) -> None:
    from types import ModuleType

    from qeff.apps.evaluate.corpus import read_dataset

    class Rows(dict):
        column_names = ("id", "text")

    asked = []
    fake = ModuleType("datasets")
    rows = Rows(text=["one", "two"])
    fake.load_dataset = lambda *args, **kwargs: asked.append((args, kwargs)) or rows  # type: ignore
    monkeypatch.setitem(sys.modules, "datasets", fake)
    assert read_dataset("wiki", "raw", "test") == "one\n\ntwo"
    assert asked == [(("wiki", "raw"), {"split": "test"})]
    rows.column_names = ("id",)
    with pytest.raises(OptionValueError, match="none of the columns"):
        read_dataset("wiki", None, "test")
    fake.load_dataset = lambda *args, **kwargs: 1 / 0  # type: ignore[attr-defined]
    with pytest.raises(RequestError, match="cannot be read: division by zero"):
        read_dataset("wiki", None, "test")


def test_phases_are_named_in_their_order() -> None:
    assert parse_phases("target, float") == ("float", "target")
    with pytest.raises(UsageError, match="unknown phase"):
        parse_phases("float,")


def test_the_picture_is_drawn_with_matplotlib(tiny, cache, ids, tmp_path) -> None:
    opened = container(tiny, precision="int8")
    passage = Passage(ids=ids, windows=cut(len(ids), CTX))
    phases = [Phase("float", container(tiny)), Phase("target", opened)]
    findings = evaluate(phases, passage, has_reference=True)
    plot.draw(findings, tmp_path / "out.png", title="tiny")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ResourceError, match="cannot be written"):
        plot.draw(findings[:1], tmp_path / "none" / "out.png", title="tiny")


def test_the_table_shows_what_was_found(tiny, cache) -> None:
    opened = container(tiny, precision="fp32")
    ids = np.arange(CTX)
    (found,) = evaluate(
        [Phase("target", opened)], Passage(ids=ids, windows=cut(CTX, CTX)), has_reference=False
    )
    fixed = replace(found, nll=np.full(4, math.log(2.0)), tokens_per_s=12.34)
    head, row = lines([fixed.to_json()])
    assert row.split() == [
        "target", "ort", "fp32", "2.0000", "±", "0.0000", "-", "-", "-", "-", "-", "4", "12.3",
    ]  # fmt: skip
    assert head.endswith("tokens/s") and len(head) == len(row)
