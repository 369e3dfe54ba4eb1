"""Every command line that QEfficient's documents print is accepted as it stands."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path

import pytest

from qeff.apps.terminal import flags
from qeff.apps.terminal.parser import Parser
from qeff.apps.terminal.prompts import read_prompts

THREE = '"My name is|The flat earth\ntheory is the belief that|The sun rises from"'
QPC = "qeff_models/gpt2/qpc_16cores_1BS_32PL_128CL_1devices_mxfp6/qpcs"
QNN_QPC = "qeff_models/gpt2/qpc_qnn_16cores_1BS_32PL_128CL_1devices_mxfp6/qpcs"
CODEGEN = "Salesforce/codegen-2B-mono"
CODEGEN_QPC = f"qeff_models/{CODEGEN}/qpc_16cores_1BS_32PL_128CL_2devices_mxfp6/qpcs"
ONE = "--model_name gpt2 --batch_size 1 --prompt_len 32 --ctx_len 128 --mxfp6 --num_cores 16"
END = '--prompt "My name is" --mos 1 --aic_enable_depth_first'
BATCH = (
    "--model_name gpt2 --batch_size 3 --prompt_len 32 --ctx_len 128 --num_cores 16 "
    "--device_group [0]"
)
DEPTH = "--mxfp6 --mos 1 --aic_enable_depth_first"
COMPILE = (
    "--onnx_path gpt2.onnx --qpc-path out --batch_size 1 --prompt_len 32 --ctx_len 128 --mxfp6 "
    '--num_cores 16 --device_group [0] --prompt "My name is" --mos 1 --aic_enable_depth_first '
    "--enable_qnn"
)

INFER = {
    "one": f"{ONE} --device_group [0] {END}",
    "batch": f"{BATCH} --prompt {THREE} --mxfp6 --mos 1 --aic_enable_depth_first",
    "file": f"{BATCH} --prompts_txt_file_path examples/prompts.txt {DEPTH}",
    "cards": (
        f"--model_name {CODEGEN} --batch_size 1 --prompt_len 32 --ctx_len 128 --mxfp6 "
        '--num_cores 16 --device-group [0,1] --prompt "def fibonacci(n):" '
        "--mos 2 --aic_enable_depth_first"
    ),
    "one card": f"{ONE} --device-group [0] {END}",
    "continuous": (
        "--model_name TinyLlama/TinyLlama_v1.1 --prompt_len 32 --ctx_len 128 --num_cores 16 "
        f"--device_group [0] --prompt {THREE} {DEPTH} --full_batch_size 3"
    ),
    "qnn": f"{ONE} --device_group [0] {END} --enable_qnn",
    "qnn config": f"{ONE} --device_group [0] {END} --enable_qnn QEfficient/compile/qnn_config.json",
}
EXECUTE = {
    "one": f'--model_name gpt2 --qpc_path {QPC} --prompt "Once upon a time in" --device_group [0]',
    "cards": (
        f"--model_name {CODEGEN} --qpc-path {CODEGEN_QPC} "
        '--prompt "def binary_search(array: np.array, k: int):" --device-group [0,1]'
    ),
    "qnn": (
        f'--model_name gpt2 --qpc_path {QNN_QPC} --prompt "Once upon a time in" --device_group [0]'
    ),
}


class Listener:
    """A screen that keeps what is said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def parse(command: str, line: str):
    """Parse a line the way the alias module does, without running it."""
    alias = importlib.import_module("QEfficient.cloud")
    module = importlib.import_module(f"qeff.apps.cli.{command}")
    parser = Parser(prog=command, description="x")
    module.add_arguments(parser)
    defaults = alias.DEFAULTS if command in ("infer", "compile") else ()
    args = parser.parse([*defaults, *shlex.split(line)])
    args.screen = Listener()
    return args


@pytest.mark.parametrize("name", INFER)
def test_infer_lines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    args = parse("infer", INFER[name])
    options = flags.compile_options(args)
    assert (options.prefill_seq_len, options.ctx_len, options.precision) == (32, 128, "mxfp6")
    assert options.num_devices == (2 if name == "cards" else 1)
    assert options.full_batch_size == (3 if name == "continuous" else None)
    assert options.batch_size == (3 if name in ("batch", "file") else 1)
    assert flags.export_options(args).continuous_batching == (name == "continuous")
    prompts = read_prompts(args)
    assert len(prompts) == (3 if name in ("batch", "file", "continuous") else 1)
    given = flags.vendor_options(args)
    assert given["num_cores"] == 16 and given["aic_enable_depth_first"] is True
    assert given["mos"] == (2 if name == "cards" else 1)
    assert given.get("enable_qnn", False) is name.startswith("qnn")
    assert (given.get("qnn_config") is not None) is (name == "qnn config")
    (note,) = args.screen.notes  # one line, which says where it runs and why
    assert note.startswith("running on cpu") and "\n" not in note


@pytest.mark.parametrize("tail", ["", " QEfficient/compile/qnn_config.json"])
def test_compile_lines(tail: str) -> None:
    args = parse("compile", COMPILE + tail)
    assert (args.onnx_path, args.qpc_path, args.prompt) == ("gpt2.onnx", "out", "My name is")
    options = flags.compile_options(args)
    assert (options.prefill_seq_len, options.ctx_len, options.precision) == (32, 128, "mxfp6")
    assert flags.vendor_options(args).get("qnn_config") == (tail.strip() or None)
    assert len(args.screen.notes) == 1


@pytest.mark.parametrize("name", EXECUTE)
def test_execute_lines(name: str) -> None:
    args = parse("execute", EXECUTE[name])
    assert args.qpc_path.endswith("/qpcs")
    assert args.device_group == ((0, 1) if name == "cards" else (0,))
    assert len(read_prompts(args)) == 1


def test_alias_defaults_are_the_documented_ones() -> None:
    args = parse("infer", '--model_name gpt2 --num_cores 16 --prompt "My name is"')
    options = flags.compile_options(args)
    assert (options.prefill_seq_len, options.ctx_len, options.batch_size) == (32, 128, 1)


def test_execute_finds_the_options_in_a_documented_name() -> None:
    from qeff.apps.container_path import documented_options

    for name in ("one", "continuous", "cards"):
        asked = flags.compile_options(parse("infer", INFER[name]))
        count = asked.full_batch_size or asked.batch_size
        kind = "FBS" if asked.full_batch_size else "BS"
        folder = f"qpc_16cores_{count}{kind}_32PL_128CL_{asked.num_devices}devices_mxfp6"
        assert documented_options(f"qeff_models/x/{folder}/qpcs") == asked
        assert documented_options(f"qeff_models/x/{folder}") == asked
    assert documented_options("some/folder") is None


def test_an_explicit_target_needs_no_excuse() -> None:
    args = parse("infer", INFER["one"] + " --target ort")
    flags.compile_options(args)
    assert args.screen.notes == []


def test_the_note_speaks_as_the_user_does(caplog) -> None:
    from qeff.apps import vendor

    args = parse("infer", INFER["qnn config"])
    flags.compile_options(args)
    assert args.screen.notes[0].endswith("--enable-qnn, --device-group only matter to qnn")
    args = parse("infer", "--model_name gpt2 --num_cores 16")
    flags.compile_options(args)
    assert args.screen.notes[0].endswith("--num-cores only matters to qaic")
    vendor.target_options(None, {"num_cores": 14, "enable_qnn": True, "qnn_config": "x"})
    assert "; num_cores, enable_qnn, qnn_config only matter to qnn" in caplog.text


def test_the_alias_tells_its_own_defaults(capsys) -> None:
    from QEfficient.cloud.export import main as export
    from QEfficient.cloud.infer import main as infer

    assert infer(["--help"]) == 0
    assert capsys.readouterr().out.endswith("QEfficient's: --prompt-len 32 --ctx-len 128.\n")
    assert export(["--help"]) == 0
    assert "QEfficient's" not in capsys.readouterr().out


def test_what_is_not_offered_says_so(capsys) -> None:
    import QEfficient

    for name in QEfficient.ELSEWHERE:
        with pytest.raises(ImportError, match=f"{name} is not part of qeff: "):
            exec(f"from QEfficient import {name}")
    assert not hasattr(QEfficient, "nonsense")
    finetune = importlib.import_module("QEfficient.cloud.finetune")
    assert finetune.main(["--device", "qaic:0", "--use-peft"]) == 2
    assert "error: qeff trains no models\n\nhint: " in capsys.readouterr().err


def test_export_takes_a_word_for_mxint8() -> None:
    for word, value in (("True", True), ("false", False)):
        args = parse("export", f"--model_name gpt2 --mxint8_kv_cache {word}")
        assert args.mxint8_kv_cache is value
