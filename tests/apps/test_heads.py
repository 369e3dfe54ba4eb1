"""A model that brings heads, in every target: the guesses are theirs, the text is its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from qeff import QEFFAutoModelForCausalLM
from qeff.apps.cli.main import main
from qeff.container import Container
from qeff.core.errors import SourceError, UsageError
from qeff.runtime import Batch, Span, open_session
from qeff.sources import locate, open_source
from qeff.sources.speculator import with_heads, write_heads

TURBO = {"speculative_model_type": "turbo"}
NUMBERS = {"num_heads": 2, "num_layers": 2}
TARGETS = ["cpu", "reference", "ort"]


@pytest.fixture(scope="module")
def folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("heads") / "tiny-turbo"
    shutil.copytree(tiny, made)
    draws = np.random.default_rng(7)
    write_heads(made, NUMBERS, 64, lambda shape: 0.05 * draws.standard_normal(shape))
    return made


def eager_guesses(folder: Path, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The likeliest tokens of the model and of its heads, by plain torch."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    state = load_file(folder / "speculator.safetensors")
    with torch.no_grad():
        x = model.model(torch.tensor([tokens])).last_hidden_state[0]
        found = []
        for head in range(NUMBERS["num_heads"]):
            y = x
            for layer in range(NUMBERS["num_layers"]):
                name = f"projections.{head}.{layer}.linear"
                made = y @ state[f"{name}.weight"].T + state[f"{name}.bias"]
                y = y + made * torch.sigmoid(made)
            found.append(model.lm_head(y).argmax(-1).numpy())
        return model.lm_head(x).argmax(-1).numpy(), np.stack(found, 1)


@pytest.mark.parametrize("target", TARGETS)
def test_heads_guess_in_every_target(folder: Path, cache: Path, target: str) -> None:
    model = QEFFAutoModelForCausalLM.from_pretrained(folder, qaic_config=TURBO)
    path = model.compile(ctx_len=64, target=target, precision="auto" if target == "ort" else "fp32")
    session = open_session(Container.open(Path(path)))
    assert session.caps.num_heads == 2 and not session.caps.chooses
    session.reserve(-(-64 // session.caps.block_len))
    tokens = [int(token) for token in np.random.default_rng(1).integers(3, 300, 12)]
    places = np.arange(12)
    blocks = tuple(range(-(-64 // session.caps.block_len)))
    output = session.step(Batch(np.array(tokens), places, (Span(0, 12, blocks),), places))
    session.close()
    own, guesses = eager_guesses(folder, tokens)
    assert output.logits.shape == (12, session.caps.vocab_size)
    assert output.logits.argmax(-1).tolist() == own.tolist()
    assert output.guesses is not None and output.guesses.tolist() == guesses.tolist()

    plain = QEFFAutoModelForCausalLM.from_pretrained(folder)
    plain.compile(ctx_len=64, target=target, precision="auto" if target == "ort" else "fp32")
    assert plain.qpc_path != model.qpc_path
    prompts = ["my name is", "once upon a time in the flat earth"]
    expected = plain.generate(prompts=prompts, generation_len=24, stream=False)
    found = model.generate(prompts=prompts, generation_len=24, stream=False)
    assert found.generated_texts == expected.generated_texts
    assert any(result.num_drafted for result in model.results)
    for other in (model, plain):
        other.close()


def test_only_wanted_rows_reach_the_heads(folder: Path, cache: Path) -> None:
    import onnx_ir

    model = QEFFAutoModelForCausalLM.from_pretrained(folder, qaic_config=TURBO)
    path = Path(model.compile(ctx_len=64, target="ort"))
    graph = onnx_ir.load(path / "program.onnx").graph
    single = next(node for node in graph if node.name == "logits_index/single")
    read = [use.node.op_type for use in single.outputs[0].uses()]
    assert len(read) == 2 * 2 + 1  # the product and the sum of each first block, and the head


def test_heads_and_what_goes_with_them(folder: Path, cache: Path) -> None:
    model = QEFFAutoModelForCausalLM.from_pretrained(folder, qaic_config=TURBO)
    model.compile(ctx_len=64)
    settings = {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.2, "stream": False}
    texts = []
    for speculation in ("heads", "prompt_lookup", "lookahead"):
        info = model.generate(
            prompts=["the sun"], generation_len=20, speculation=speculation, **settings
        )
        texts.append(info.generated_texts)
    assert texts[0] == texts[1] == texts[2]
    model.close()


def test_the_command_line_takes_heads(folder: Path, cache: Path, capsys) -> None:
    base = ["infer", "--model-name", str(folder), "--ctx-len", "64", "--generation-len", "12"]
    assert main([*base, "--prompt", "my name", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*base, "--prompt", "my name", "--speculation", "heads", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["totals"]["speculation"] and not plain["totals"]["speculation"]
    texts = [[one["text"] for one in output["results"]] for output in (plain, found)]
    assert texts[0] == texts[1]


def test_an_exported_graph_keeps_its_heads(folder: Path, cache: Path, tmp_path: Path) -> None:
    model = QEFFAutoModelForCausalLM.from_pretrained(folder, qaic_config=TURBO)
    graph = model.export(tmp_path / "onnx")
    path = model.compile(onnx_path=graph, ctx_len=64)
    session = open_session(Container.open(Path(path)))
    assert session.caps.num_heads == 2
    session.close()


def test_a_large_model_is_checked_by_a_twin_with_heads(folder: Path, monkeypatch) -> None:
    from qeff.core.options import ExportOptions
    from qeff.export import export
    from qeff.transform import prepare, reference

    monkeypatch.setattr(reference, "MAX_LOADED_PARAMS", 0)
    prepared = prepare(open_source(with_heads(locate(folder))), ExportOptions())
    graph = export(prepared)
    assert graph.certificate["method"] == "twin" and graph.spec.vocab_size < 320
    assert graph.certificate["equal_greedy_tokens"] == graph.certificate["tokens_compared"]


def test_heads_that_are_missing_or_wrong_are_told(folder: Path, tiny: Path, tmp_path) -> None:
    with pytest.raises(SourceError, match=r"has no speculator_config\.json"):
        QEFFAutoModelForCausalLM.from_pretrained(tiny, qaic_config=TURBO)
    with pytest.raises(UsageError, match="unknown speculative_model_type 'turbos'"):
        QEFFAutoModelForCausalLM.from_pretrained(
            folder, qaic_config={"speculative_model_type": "turbos"}
        )
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "speculator_config.json").write_text('{"turbo_num_heads": 0, "turbo_num_layers": 2}')
    model = QEFFAutoModelForCausalLM.from_pretrained(broken, qaic_config=TURBO)
    with pytest.raises(SourceError, match="turbo_num_heads 0"):
        model.compile(ctx_len=64)
    (broken / "speculator_config.json").write_text('{"turbo_num_heads": 3, "turbo_num_layers": 2}')
    with pytest.raises(SourceError, match="no tensor for speculator"):
        model.compile(ctx_len=64)


def test_a_checkpoint_with_its_heads_is_another(folder: Path) -> None:
    plain = locate(folder)
    turbo = with_heads(plain)
    assert turbo.content_hash() != plain.content_hash()
    assert with_heads(turbo) == turbo
