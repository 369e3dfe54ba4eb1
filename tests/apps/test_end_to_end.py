"""The whole way on a tiny model, from checkpoint to text, against transformers' own text."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qeff
from qeff.apps.cli.main import main

PROMPT = "my name is"
NEW = 8


@pytest.fixture(scope="module")
def expected(tiny: Path) -> dict[str, list[int]]:
    """What transformers generates, greedily, for a few prompts."""
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    found = {}
    for prompt in (PROMPT, "once upon a time in", "the sun rises from"):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(ids, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
        found[prompt] = out[0, ids.shape[1] :].tolist()
    return found


def infer(tiny: Path, *words: str) -> list[str]:
    """A command line whose tokens must be those of transformers, which runs in fp32."""
    small = ("--ctx-len", "64", "--prompt-len", "8", "--generation-len", str(NEW), "--ignore-eos")
    return ["infer", "--model-name", str(tiny), "--precision", "fp32", *small, *words]


@pytest.mark.parametrize(("words", "target"), [([], "cpu"), (["--target", "ort"], "ort")])
def test_infer_gives_the_tokens_of_transformers(
    tiny, cache, expected, capsys, words: list[str], target: str
) -> None:
    assert main(infer(tiny, "--prompt", "|".join(expected), "--json", *words)) == 0
    out, _ = capsys.readouterr()
    report = json.loads(out)  # one object and nothing else
    assert [item["prompt"] for item in report["results"]] == list(expected)
    assert [item["token_ids"] for item in report["results"]] == list(expected.values())
    assert report["target"] == target and report["totals"]["num_tokens"] == 3 * NEW
    assert {item["finish"] for item in report["results"]} == {"length"}


def test_continuous_batching_gives_the_same(tiny, cache, expected, capsys) -> None:
    words = infer(tiny, "--prompt", "|".join(expected), "--json", "--full-batch-size", "2")
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert [item["token_ids"] for item in report["results"]] == list(expected.values())
    assert report["totals"]["batch_size"] == 2


def test_text_goes_to_stdout_and_timings_to_stderr(tiny, cache, expected, capsys) -> None:
    from transformers import AutoTokenizer

    assert main(infer(tiny, "--prompt", PROMPT)) == 0
    out, err = capsys.readouterr()
    assert out.rstrip("\n") == AutoTokenizer.from_pretrained(tiny).decode(expected[PROMPT])
    assert "time to first token" in err and "tokens/s" in err and len(err.splitlines()) == 1
    assert main(infer(tiny, "--prompt", f"{PROMPT}|once", "--quiet")) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"> {PROMPT}\n") and "\n\n> once\n" in out and err == ""


def test_chat_uses_the_template(tiny, cache, capsys) -> None:
    assert main(infer(tiny, "--prompt", PROMPT, "--json")) == 0
    plain = json.loads(capsys.readouterr().out)["results"][0]["num_prompt_tokens"]
    assert main(infer(tiny, "--prompt", PROMPT, "--json", "--chat", "--system", "a")) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["num_prompt_tokens"] > plain


def test_sampling_follows_its_seed(tiny, cache, capsys) -> None:
    texts = []
    for seed in ("1", "1", "2"):
        words = ["--prompt", PROMPT, "--json", "--temperature", "2", "--seed", seed]
        assert main(infer(tiny, *words)) == 0
        texts.append(json.loads(capsys.readouterr().out)["results"][0]["token_ids"])
    assert texts[0] == texts[1] != texts[2]


def test_a_prompt_longer_than_the_context(tiny, cache, capsys) -> None:
    assert main(infer(tiny, "--prompt", "my name is " * 30)) == 1
    err = capsys.readouterr().err
    assert "context is 64" in err and "hint: " in err


def test_a_second_run_needs_neither_torch_nor_the_checkpoint_s_tensors(
    tiny, environment, cache, expected
) -> None:
    blocked = "torch", "transformers", "onnx", "onnx_ir", "safetensors", "gguf"
    words = infer(tiny, "--prompt", PROMPT, "--json")
    assert main(words) == 0
    code = (
        f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n"
        f"from qeff.apps.cli.main import main\nsys.exit(main({words!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["token_ids"] == expected[PROMPT]


def test_export_compile_execute_inspect(tiny, cache, expected, capsys, tmp_path) -> None:
    onnx, qpc = tmp_path / "onnx", tmp_path / "my container"
    assert main(["export", "--model-name", str(tiny), "--export-dir", str(onnx)]) == 0
    graph = Path(capsys.readouterr().out.strip())
    assert graph.parent == onnx and graph.is_file()
    words = ["--onnx-path", str(graph), "--qpc-path", str(qpc), "--ctx-len", "64"]
    words += ["--precision", "fp32"]
    assert main(["compile", *words]) == 0
    assert capsys.readouterr().out.strip() == str(qpc)
    answer = ["--prompt", PROMPT, "--generation-len", str(NEW), "--ignore-eos", "--json"]
    for path in (qpc, qpc / "qpcs"):
        assert main(["execute", "--qpc-path", str(path), *answer]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["results"][0]["token_ids"] == expected[PROMPT]
    assert main(["infer", "--model-name", str(qpc), *answer]) == 2
    said = capsys.readouterr().err
    assert "is a container, not a model" in said and "qeff execute --qpc-path" in said
    for path, what in ((tiny, "checkpoint"), (graph, "graph"), (onnx, "graph"), (qpc, "container")):
        assert main(["inspect", str(path), "--json", "--verify"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["what"] == what and found["total_bytes"] > 0
        assert main(["inspect", str(path)]) == 0
        text = capsys.readouterr().out
        assert text.startswith(what)
        assert "greedy tokens equal" in text or what == "checkpoint"


def test_the_exported_graph_runs_in_onnx_runtime(tiny, cache, expected, tmp_path) -> None:
    """Without any code of ours: the ONNX file, the documented signature, greedy decoding."""
    import onnxruntime
    from transformers import AutoTokenizer

    model = qeff.QEFFAutoModelForCausalLM.from_pretrained(str(tiny))
    path = model.export(tmp_path / "onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    caches = {
        port.name: np.zeros((1, port.shape[1], 64, port.shape[3]), np.float32)
        for port in session.get_inputs()
        if port.name.startswith("past_")
    }
    tokens = list(AutoTokenizer.from_pretrained(tiny)(PROMPT).input_ids)
    made: list[int] = []
    step, start = tokens, 0
    names = [port.name for port in session.get_outputs()]
    while len(made) < NEW:
        positions = np.arange(start, start + len(step))[None]
        feeds = {"input_ids": np.array([step]), "position_ids": positions, **caches}
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
        caches = {name: outputs[f"{name}_RetainedState"] for name in caches}
        start += len(step)
        step = [int(outputs["logits"][0, -1].argmax())]
        made += step
    assert made == expected[PROMPT]


def test_python_class(tiny, cache, expected, capsys) -> None:
    from transformers import AutoTokenizer

    model = qeff.QEFFAutoModelForCausalLM.from_pretrained(str(tiny))
    path = model.compile(ctx_len=64, prefill_seq_len=8, precision="fp32")
    assert Path(path) == model.qpc_path
    prompts = list(expected)
    info = model.generate(prompts=prompts, generation_len=NEW, ignore_eos=True, stream=False)
    assert capsys.readouterr().out == ""
    assert info.batch_size == 1 and len(info.generated_texts) == 3
    assert info.generated_ids.shape == (3, 64)
    assert info.generated_ids[:, :NEW].tolist() == list(expected.values())
    assert info.perf_metrics.total_time > 0 and info.perf_metrics.decode_perf > 0
    again = model.generate(
        AutoTokenizer.from_pretrained(tiny), prompts, generation_len=NEW, ignore_eos=True
    )
    assert again.generated_texts == info.generated_texts
    assert f"> {prompts[1]}\n{info.generated_texts[1]}" in capsys.readouterr().out


def test_python_class_takes_a_model_in_memory(tiny, cache, expected) -> None:
    from transformers import AutoTokenizer, LlamaForCausalLM

    eager = LlamaForCausalLM.from_pretrained(tiny)
    model = qeff.QEFFAutoModelForCausalLM(eager)
    model.compile(ctx_len=64, prefill_seq_len=8, precision="fp32")
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    info = model.generate(
        tokenizer, [PROMPT], generation_len=NEW, ignore_eos=True, stream=False, temperature=0.0
    )
    assert info.generated_ids[0, :NEW].tolist() == expected[PROMPT]


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_container_in_the_cache_is_made_again(
    tiny, cache, expected, capsys, harm: str
) -> None:
    words = infer(tiny, "--prompt", PROMPT, "--json")
    assert main(words) == 0
    container = Path(json.loads(capsys.readouterr().out)["container"])
    weights = container / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    if harm == "flip":
        data[-1] ^= 1
        weights.write_bytes(data)
    elif harm == "cut":
        weights.write_bytes(data[:-10])
    else:
        weights.unlink()
    broken = main(["execute", "--qpc-path", str(container), "--prompt", PROMPT])
    out, err = capsys.readouterr()
    assert broken == 1 and out == "" and "weights.safetensors" in err and "hint: " in err
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["results"][0]["token_ids"] == expected[PROMPT]
    assert "made again" in err


@pytest.mark.parametrize("name", ["graph.json", "graph.onnx"])
def test_a_damaged_graph_in_the_cache_is_made_again(name, tiny, empty_cache, capsys) -> None:
    assert main(["export", "--model-name", str(tiny)]) == 0
    (file,) = empty_cache.glob(f"tiny-llama/tiny-llama-*/{name}")
    whole = file.read_bytes()
    file.write_bytes(whole[:1000])
    assert main(infer(tiny, "--prompt", PROMPT)) == 0
    assert "made again" in capsys.readouterr().err
    assert file.read_bytes() == whole


def test_two_processes_at_once(tiny, environment, tmp_path, expected) -> None:
    own = {**environment, "QEFF_HOME": str(tmp_path / "cache")}
    words = [sys.executable, "-m", "qeff", *infer(tiny, "--prompt", PROMPT, "--json")]
    running = [
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own)
        for _ in range(2)
    ]
    for process in running:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        assert json.loads(out)["results"][0]["token_ids"] == expected[PROMPT]
    folders = [path.name for path in (tmp_path / "cache" / "tiny-llama").iterdir()]
    assert sorted(name.split("-")[0] for name in folders) == ["qpc", "tiny"]  # and nothing else


def test_a_killed_process_leaves_nothing_to_be_mistaken(tiny, environment, tmp_path) -> None:
    """SIGKILL in the middle of each stage; the last run, which lives, finds no half result."""
    own = {**environment, "QEFF_HOME": str(tmp_path / "cache")}
    code = (
        "import os, signal, sys, qeff\n"
        "def progress(event):\n"
        "    if event.stage == sys.argv[2]: os.kill(os.getpid(), signal.SIGKILL)\n"
        "print(qeff.build(sys.argv[1], qeff.ExportOptions(), qeff.CompileOptions(), "
        "progress=progress))\n"
    )
    # The graph is checked before it is lowered; once it is there, "check" is the container's own.
    stages = ("check", "lower", "pack", "check", "none")
    for stage, code_expected in zip(stages, (-9, -9, -9, -9, 0), strict=True):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tiny), stage],
            capture_output=True,
            text=True,
            env=own,
            check=False,
        )
        assert done.returncode == code_expected, (stage, done.stderr)
    qeff.Container.open(done.stdout.strip(), verify="full")
    names = [path.name for path in (tmp_path / "cache" / "tiny-llama").iterdir()]
    assert not [name for name in names if name.startswith(".")]  # drafts of the dead are swept


def test_documented_commands_run_as_printed(tiny, cache, monkeypatch, tmp_path, capsys) -> None:
    """The model's name in the document is here a folder of that name; nothing else is changed."""
    import shlex

    from test_documented_lines import COMPILE, EXECUTE, INFER

    from QEfficient.cloud import compile as compile_command
    from QEfficient.cloud import execute, export, infer

    root = Path(__file__).resolve().parents[2]
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "Salesforce/codegen-2B-mono", "TinyLlama/TinyLlama_v1.1"):
        shutil.copytree(tiny, tmp_path / name)
    shutil.copytree(root / "examples", tmp_path / "examples")
    for line in INFER.values():
        assert infer.main(shlex.split(line)) == 0
        out, err = capsys.readouterr()
        assert out and err.count("running on cpu") == 1
    for line in EXECUTE.values():
        assert execute.main(shlex.split(line)) == 0
        out, err = capsys.readouterr()
        assert out and err.count("running on cpu") == 1
    assert export.main(["--model_name", "gpt2"]) == 0
    graph = capsys.readouterr().out.strip()
    line = COMPILE.replace("gpt2.onnx", shlex.quote(graph)).replace(
        "--qpc-path out", "--qpc-path q"
    )
    assert compile_command.main(shlex.split(line)) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "q")
    assert (tmp_path / "q" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["infer", "--model-name", "./nowhere", "--prompt", "x"], "there is no checkpoint at"),
        (["execute", "--qpc-path", "./nowhere", "--prompt", "x"], "there is no container at"),
        (["execute", "--qpc-path", ".", "--prompt", "x"], "is not a container"),
        (["compile", "--onnx-path", "./nowhere.onnx"], "there is no graph at"),
        (["inspect", "./nowhere"], "there is no checkpoint at"),
        (["infer", "--prompts-txt-file-path", "empty.txt"], "holds no prompt"),
        (["infer", "--prompts-txt-file-path", "latin.txt"], "is not UTF-8"),
        (["infer", "--prompts-txt-file-path", "missing.txt"], "cannot be read"),
        (["infer", "--prompt", "a||b"], "a prompt is empty"),
    ],
)
def test_wrong_input_is_one_clear_sentence(
    words, what, cache, capsys, monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n\n")
    Path("latin.txt").write_bytes("é".encode("latin-1"))
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert out == "" and what in err and "hint: " in err and "Traceback" not in err
    assert len(err.splitlines()) == 3
