"""How many of transformers' causal language models go up the ladder of parity.

    python benchmarks/coverage.py [MODEL_TYPE …] [--markdown docs/coverage.md]

Every model type gets a shrunken config and random weights, is saved as a checkpoint, exported, run
in ONNX Runtime and in the numpy reference, and compared with eager PyTorch: ragged prefill, four
decode steps, a chunk of three. A crash or a hang in a child process is one row of the table.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 300
# Where the default config cannot be built, or cannot be shrunk: what to say besides usual sizes.
_GROUPS = {"n_group": 1, "topk_group": 1, "n_routed_experts": 4, "num_experts_per_tok": 2}
SPELLED_OUT: dict[str, dict] = {
    "deepseek_v2": {**_GROUPS, "num_key_value_heads": 4, "moe_intermediate_size": 32},
    "dots1": {**_GROUPS, "n_shared_experts": 1, "moe_intermediate_size": 32},
    "hrm_text": {},
}


def small_config(model_type: str):
    """A config of this type that a decoder can be built from in a moment."""
    from architectures import ROWS, USUAL, tiny_config
    from transformers import AutoConfig

    from qeff.transform.shrink import shrink

    if model_type in ROWS:
        return tiny_config(model_type)
    if model_type in SPELLED_OUT:
        return AutoConfig.for_model(model_type, **{**USUAL, **SPELLED_OUT[model_type]})
    config = AutoConfig.for_model(model_type)
    if getattr(config, "is_decoder", None) is False and not config.is_encoder_decoder:
        config.is_decoder = True  # an encoder that can serve as a decoder
    return shrink(config)


def measure(model_type: str) -> dict:
    """Climb the ladder once; what came of it."""
    warnings.filterwarnings("ignore")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "models")]
    from ladder import climb
    from transformers.utils import logging

    from qeff.core.errors import QeffError
    from qeff.transform.reference import random_model

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    row: dict = {"model_type": model_type}
    try:
        config = small_config(model_type)
        random_model(config)
    except Exception as error:  # whatever the model's own code says
        reason = str(error).strip().splitlines()
        row["unbuilt"] = f"{type(error).__name__}: {reason[-1].strip() if reason else ''}"[:150]
        return row
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = climb(config, Path(folder))
        assert found.program is not None
        row |= {
            "onnx_error": found.onnx.max_abs_error,
            "program_error": found.program.max_abs_error,
            "max_logit": found.onnx.max_logit,
            "passed": found.onnx.is_equal and found.program.is_equal,
        }
    except QeffError as error:
        row["refused"] = error.what
    except Exception as error:  # a process border: the table must go on
        row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return row


def measure_all(model_types: list[str]) -> Iterator[dict]:
    """Measure in child processes: one goes on until it ends or dies, then the next takes over."""
    left = list(model_types)
    while left:
        child = [sys.executable, __file__, "--child", *left]
        with subprocess.Popen(
            child, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
                    left.pop(0)
        if left:
            yield {"model_type": left.pop(0), "failed": f"process ended: {process.returncode}"}


def verdict(row: dict) -> str:
    """One phrase for a row."""
    if row.get("passed"):
        return f"yes, {max(row['onnx_error'], row['program_error']):.1e}"
    if "passed" in row:
        return f"differs by {max(row['onnx_error'], row['program_error']):.1e}"
    if "unbuilt" in row:
        return f"transformers builds no small model of it here: {row['unbuilt']}"
    return f"refused: {row['refused']}" if "refused" in row else f"failed: {row['failed']}"


def write_markdown(path: Path, rows: list[dict]) -> None:
    """The table for the documents."""
    import torch
    import transformers

    passed = sum(bool(row.get("passed")) for row in rows)
    path.write_text(
        "# Coverage\n\n"
        f"{passed} of transformers' {len(rows)} causal language model types export and match eager "
        f"PyTorch in ONNX Runtime and in the numpy reference (transformers "
        f"{transformers.__version__}, torch {torch.__version__.split('+')[0]}). Shrunken configs, "
        "random weights, ragged prefill, four decode steps and a chunk of three; the number is the "
        "largest absolute difference of logits. Made by `benchmarks/coverage.py`.\n\n"
        "| model type | exports and matches |\n|---|---|\n"
        + "".join(f"| `{row['model_type']}` | {verdict(row)} |\n" for row in rows)
    )


def main() -> int:
    """Print one line per model type and the count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model_types", nargs="*")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        for model_type in args.model_types:
            signal.alarm(LIMIT_SECONDS)
            print(json.dumps(measure(model_type)), flush=True)
        return 0
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    rows = []
    for row in measure_all(args.model_types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)):
        rows.append(row)
        print(f"{row['model_type']:<26} {verdict(row)}", flush=True)
    print(f"{sum(bool(row.get('passed')) for row in rows)} of {len(rows)} pass")
    if args.markdown:
        write_markdown(args.markdown, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
