"""The benchmark: its figures and their names, its bare processes, and how it drives sessions."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qeff.apps.bench import limits, measure, traffic, worker
from qeff.apps.bench.driver import Driver
from qeff.apps.bench.measure import Plan
from qeff.apps.cli.bench import lines, sizes
from qeff.apps.cli.main import main
from qeff.apps.pipeline import build
from qeff.container import Container
from qeff.container.format import WEIGHTS
from qeff.core.errors import OptionValueError, QeffError, ResourceError
from qeff.core.options import CompileOptions, ExportOptions
from qeff.generate import Engine, SamplingParams
from qeff.runtime import open_session

SMALL = ["--prompt-len", "24", "--short-len", "4", "--generation-len", "6", "--rounds", "2"]
KEYS = {
    "prefill_tok_s", "decode_tok_s", "batch_decode_tok_s", "ttft_s", "load_s", "peak_rss_bytes",
    "weights_bytes", "limits",
}  # fmt: skip


def container(tiny: Path, **options) -> Container:
    chosen = CompileOptions(target="ort", ctx_len=64, **options)
    return Container.open(build(tiny, ExportOptions(), chosen))


def test_figures_and_their_names(tiny, cache, capsys) -> None:
    words = ["bench", str(tiny), *SMALL, "--batch-sizes", "3,1", "--target", "ort", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= KEYS
    assert list(found["batch_decode_tok_s"]) == ["1", "3"]
    assert found["batch_decode_tok_s"]["1"] == found["decode_tok_s"] > 0
    for name in ("prefill_tok_s", "decode_tok_s", "ttft_s", "load_s", "first_token_s"):
        least, most = found["spread"][name]
        assert 0 < least <= found[name] <= most, name
    assert found["first_token_s"] > found["load_s"]
    assert found["weights_bytes"] < found["peak_rss_bytes"] < 1 << 30
    assert found["limits"]["read_bytes_s"] > 1e8 and found["limits"]["threads"] >= 1
    share = found["decode_tok_s"] * found["decode_bytes"] / found["limits"]["read_bytes_s"]
    assert found["decode_bandwidth_share"] == pytest.approx(share)
    text = "\n".join(lines(found))
    assert "prefill 24" in text and "decode, batch 3" in text and "peak memory" in text


def test_a_container_is_taken_as_it_is(tiny, cache, capsys) -> None:
    path = container(tiny, precision="int8").path
    assert main(["bench", str(path), *SMALL, "--batch-sizes", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["container"] == str(path) and found["precision"]["linear"] == "int8"
    assert main(["bench", str(path), *SMALL, "--json"]) == 0  # of the usual batches, what it runs
    assert list(json.loads(capsys.readouterr().out)["batch_decode_tok_s"]) == ["1"]
    assert main(["bench", str(path), *SMALL, "--batch-sizes", "1,8"]) == 2
    assert "the container runs a batch of 1, 8 are wanted" in capsys.readouterr().err
    for words in (["--precision", "int4"], ["--mxfp6"], ["--calibration", "none"]):
        assert main(["bench", str(path), *SMALL, *words]) == 2
        assert "is decided when a container is compiled" in capsys.readouterr().err
    assert main(["bench", str(path), "--prompt-len", "65"]) == 2
    assert "holds 64 tokens" in capsys.readouterr().err


def test_warming_up_stays_within_the_context(tiny, cache) -> None:
    """A plan that fills the context to its last token leaves no room for more steps."""
    opened = container(tiny)
    for what in ("single", "batch"):
        job = {"what": what, "container": str(opened.path), "threads": 1, "batch_size": 1}
        job |= {"prompt_len": 8, "short_len": 62, "generation_len": 2, "rounds": 1}
        assert worker.JOBS[what](job)


def test_mistakes_are_told_before_any_work(capsys) -> None:
    assert main(["bench", "a", "--model-name", "b"]) == 2
    assert "a and --model-name b both name a model" in capsys.readouterr().err
    assert main(["bench", "--batch-sizes", "1,x"]) == 2
    assert "not a whole number" in capsys.readouterr().err
    assert sizes("8, 1,8") == (1, 8)


def test_it_decodes_what_the_engine_decodes(tiny, cache) -> None:
    opened = container(tiny, batch_size=3)
    prompts = np.random.default_rng(1).integers(3, 300, (3, 9))
    engine = Engine(open_session(opened))
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    wanted = [list(r.token_ids) for r in engine.generate([p.tolist() for p in prompts], params)]
    engine.close()
    driver = Driver(open_session(opened), 3)
    first = driver.prefill(prompts)
    assert first.tolist() == [tokens[0] for tokens in wanted]
    for count in range(1, 6):
        last = driver.decode(first, prompts.shape[1], count)
        assert last.tolist() == [tokens[count] for tokens in wanted]
    driver.session.close()


def test_long_prompts_go_in_several_steps(tiny, cache) -> None:
    opened = container(tiny)
    prompt = np.random.default_rng(2).integers(3, 300, (1, 50))
    driver = Driver(open_session(opened), 1)
    whole = driver.prefill(prompt)
    after = driver.decode(whole, 50, 4)
    caps = driver.session.caps
    driver.session._caps = type(caps)(  # type: ignore[attr-defined]
        caps.vocab_size, caps.ctx_len, caps.block_len, 1, 7, caps.max_blocks
    )
    assert driver.prefill(prompt).tolist() == whole.tolist()
    assert driver.decode(whole, 50, 4).tolist() == after.tolist()
    driver.session.close()


def test_the_measuring_process_has_only_the_run_half(tiny, cache, environment) -> None:
    blocked = ("torch", "transformers", "onnx", "onnx_ir", "safetensors", "gguf")
    job = {"what": "single", "container": str(container(tiny).path), "threads": 1}
    job |= {"prompt_len": 8, "short_len": 4, "generation_len": 3, "rounds": 1}
    code = (
        f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n"
        "from qeff.apps.bench.worker import main\nsys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["decode_tok_s"]) == 1


def test_memory_is_of_the_process_itself() -> None:
    """A child of a large process does not count the large one."""
    code = "from qeff.apps.bench.worker import peak_rss_bytes; print(peak_rss_bytes())"
    ballast = np.ones(200 << 20, np.uint8)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ballast.all() and 5 << 20 < int(done.stdout) < 150 << 20
    before = worker.peak_rss_bytes()
    more = np.ones(before + (64 << 20), np.uint8)
    assert more.all() and worker.peak_rss_bytes() > before + (32 << 20)


def test_errors_of_the_process_reach_the_user(tiny, cache, tmp_path, monkeypatch) -> None:
    opened = Container.open(shutil.copytree(container(tiny).path, tmp_path / "copy"))
    (opened.path / "manifest.json").unlink()
    with pytest.raises(QeffError, match="is not a container"):
        measure._in_process(opened, Plan(), {"what": "load"})
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ResourceError, match="ended early"):
        measure._in_process(opened, Plan(), {"what": "load"})
    with pytest.raises(OptionValueError, match="holds 64 tokens, 160 are wanted"):
        measure.run(opened, Plan(prompt_len=64))


def test_decoding_reads_all_weights_but_looked_up_tables(tiny, cache) -> None:
    config = json.loads((tiny / "config.json").read_text())
    assert not config["tie_word_embeddings"]
    opened = container(tiny, precision="fp32")
    table = config["vocab_size"] * config["hidden_size"] * 4
    stored = sum(opened.weight(name).nbytes for name in opened.weight_names)
    assert traffic.decode_bytes(opened) == stored - table
    assert traffic.weights_bytes(opened) == (opened.path / "weights.safetensors").stat().st_size
    chosen = CompileOptions(target="reference", ctx_len=64)
    plain = Container.open(build(tiny, ExportOptions(), chosen))
    stored = sum(plain.weight(name).nbytes for name in plain.weight_names)
    assert traffic.decode_bytes(plain) == stored - table


def test_only_chosen_experts_count(tmp_path, cache) -> None:
    from transformers import MixtralConfig

    MixtralConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        dtype="float32",
    ).save_pretrained(tmp_path / "moe")
    from qeff.sources import locate_dummy

    chosen = CompileOptions(target="reference", ctx_len=64)
    opened = Container.open(build(locate_dummy(tmp_path / "moe"), ExportOptions(), chosen))
    stored = sum(opened.weight(name).nbytes for name in opened.weight_names)
    experts = 8 * 3 * 32 * 64 * 4
    assert traffic.decode_bytes(opened) == stored - 128 * 32 * 4 - experts * 6 // 8


def test_weights_that_no_file_holds_count(tiny, tmp_path, cache) -> None:
    from qeff.sources import locate_dummy

    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    chosen = CompileOptions(target="cuda", ctx_len=64, precision="int8")
    opened = Container.open(build(locate_dummy(tmp_path), ExportOptions(), chosen))
    values = json.loads(opened.read_bytes("program.json"))["values"]
    sizes = [math.prod(shape) for _, kind, shape, _ in values if kind == "weight" and shape[1:]]
    drawn = sum(sizes) // 32 * 34  # 32 codes and their scale
    assert drawn > 10 * opened.manifest.files[WEIGHTS].size
    assert traffic.weights_bytes(opened) == opened.manifest.files[WEIGHTS].size + drawn


def test_limits_are_measured_natively_where_they_can_be(monkeypatch) -> None:
    class Native:
        def measure_limits(self, threads: int) -> tuple[float, float]:
            return 2e10, 1e11 * threads

    monkeypatch.setattr(limits, "load", Native)
    assert limits.measure_limits(3).to_json() == {
        "read_bytes_s": 2e10,
        "int8_mac_s": 3e11,
        "threads": 3,
        "method": "native",
    }

    def missing() -> None:
        raise ResourceError("not built")

    monkeypatch.setattr(limits, "load", missing)
    monkeypatch.setattr(limits, "ARRAY_BYTES", 8 << 20)
    found = limits.measure_limits(1)
    assert found.method == "numpy" and found.int8_mac_s is None and found.read_bytes_s > 1e8
