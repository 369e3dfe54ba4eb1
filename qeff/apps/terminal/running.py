"""How the engine runs: modes, speculation and the shape of steps, as options and as a setup.

None of these changes a token; they change how soon it comes. A draft model is found and compiled as
the model itself is.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff.apps.terminal.parser import Parser, positive
from qeff.core.errors import OptionValueError

if TYPE_CHECKING:
    from qeff.apps.opening import Setup
    from qeff.core.options import CompileOptions
    from qeff.generate import SpeculationConfig

MODES = ("kv", "hybrid", "lookahead")
KINDS = ("prompt-lookup", "lookahead", "draft", "heads")
LOOKAHEAD = ("ngram", "window", "gcap")
_MOST_GIB = 1 << 20


def add_running_flags(parser: Parser) -> None:
    """Modes, speculation, and the shape of steps."""
    group = parser.add_argument_group("running")
    add_threads_flag(group)
    add_gpu_flags(group)
    group.add_argument(
        "--model-mode",
        choices=MODES,
        help="kv: one token at a time, the prompt too; hybrid: the prompt in blocks, which is the"
        " default; lookahead: as hybrid, with --speculation lookahead",
    )
    group.add_argument(
        "--prefill-ar-len", type=positive, metavar="N", help="tokens of a block of the prompt"
    )
    group.add_argument(
        "--step-tokens", type=positive, metavar="N", help="tokens of all sequences in a step"
    )
    group.add_argument(
        "--no-prefix-reuse",
        action="store_true",
        help="compute equal beginnings of prompts again for each",
    )
    group = parser.add_argument_group("speculation")
    group.add_argument(
        "--speculation",
        choices=KINDS,
        help="guess tokens ahead: from the text so far, by the model itself, by a draft model, or"
        " by heads that the model brings",
    )
    group.add_argument(
        "--num-speculative-tokens", type=positive, metavar="N", help="tokens guessed at most"
    )
    group.add_argument(
        "--draft-model",
        metavar="REF",
        help="a small model or its container; implies --speculation draft",
    )
    group.add_argument("--ngram", type=int, metavar="N", help="lookahead: tokens of a candidate")
    group.add_argument("--window", type=int, metavar="N", help="lookahead: places guessed at once")
    group.add_argument("--gcap", type=int, metavar="N", help="lookahead: candidates in a step")
    group.add_argument(
        "--no-adaptive", action="store_true", help="guess also where plain decoding is quicker"
    )


def add_threads_flag(group: Any) -> None:
    """What a session on the processor takes."""
    group.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="cpu threads; default: one for each physical core",
    )


def add_gpu_flags(group: Any) -> None:
    """What a session on a GPU takes besides."""
    group.add_argument(
        "--vram-budget",
        type=gibibytes,
        metavar="GIB",
        help="most GPU memory, weights and cache together; default: all that is free",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="results that do not depend on what else is in a step; slower on a GPU, always so on"
        " the cpu",
    )


def gibibytes(text: str) -> int:
    """A number of GiB as bytes."""
    try:
        count = float(text)
    except ValueError:
        count = 0.0
    if not 0 < count < _MOST_GIB:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GiB")
    return int(count * (1 << 30))


def setup_of(args: argparse.Namespace) -> Setup:
    """What was asked for, checked before any work is done; the draft model is not there yet."""
    from qeff.apps.opening import Setup

    speculation = _speculation(args)
    chunk = args.prefill_ar_len
    if args.model_mode == "kv":
        if chunk is not None:
            raise OptionValueError(
                "--model-mode kv runs one token at a time and knows no --prefill-ar-len",
                "use --model-mode hybrid",
            )
        if speculation is not None:
            raise OptionValueError(
                "--model-mode kv runs one token at a time and cannot verify guesses",
                "leave --model-mode out",
            )
        chunk = 1
    return Setup(
        threads=args.threads,
        chunk_tokens=chunk,
        step_tokens=args.step_tokens,
        reuses_prefixes=not args.no_prefix_reuse,
        speculation=speculation,
        vram_budget=args.vram_budget,
        deterministic=args.deterministic,
    )


def with_draft(args: argparse.Namespace, setup: Setup, options: CompileOptions) -> Setup:
    """The setup with its draft model, if one was asked for, compiled with the model's options."""
    return replace(setup, draft=find_draft(args, options)) if args.draft_model else setup


def find_draft(args: argparse.Namespace, options: CompileOptions) -> Path:
    """The container of the draft model, found or made."""
    from qeff.apps.container_path import resolve
    from qeff.apps.pipeline import build
    from qeff.core.options import ExportOptions
    from qeff.sources import locate

    if folder := resolve(args.draft_model):
        return folder
    with args.screen.progress() as progress:
        location = locate(
            args.draft_model,
            cache_dir=args.cache_dir,
            token=args.hf_token,
            trust_remote_code=args.trust_remote_code,
            progress=progress,
        )
        export = ExportOptions(
            continuous_batching=options.is_continuous, trust_remote_code=args.trust_remote_code
        )
        # Overrides are by weight names, which are those of the model and not of the draft.
        own = replace(options, precision_overrides=())
        return build(location, export, own, progress=progress)


def _speculation(args: argparse.Namespace) -> SpeculationConfig | None:
    kind = _kind(args)
    numbers = {name: getattr(args, name) for name in LOOKAHEAD if getattr(args, name) is not None}
    if numbers and kind != "lookahead":
        raise OptionValueError(
            f"--{next(iter(numbers))} is a setting of lookahead decoding",
            "use --speculation lookahead",
        )
    if kind is None:
        for name in ("num_speculative_tokens", "no_adaptive"):
            if getattr(args, name):
                raise OptionValueError(
                    f"--{name.replace('_', '-')} is a setting of speculation",
                    "use --speculation prompt-lookup, lookahead, draft or heads",
                )
        return None
    from qeff.generate import SpeculationConfig

    return SpeculationConfig(
        kind=kind.replace("-", "_"),  # type: ignore[arg-type]
        num_tokens=args.num_speculative_tokens,
        is_adaptive=not args.no_adaptive,
        **numbers,
    )


def _kind(args: argparse.Namespace) -> str | None:
    """The kind of speculation that three options may name."""
    asked = {
        "--speculation": args.speculation,
        "--model-mode": "lookahead" if args.model_mode == "lookahead" else None,
        "--draft-model": "draft" if args.draft_model else None,
    }
    named = {option: kind for option, kind in asked.items() if kind is not None}
    if len(set(named.values())) > 1:
        first, second = list(named)[:2]
        raise OptionValueError(
            f"{first} {getattr(args, first[2:].replace('-', '_'))} and {second} "
            f"{getattr(args, second[2:].replace('-', '_'))} exclude each other",
            "one of them guesses",
        )
    kind = next(iter(named.values()), None)
    if kind == "draft" and not args.draft_model:
        raise OptionValueError(
            "--speculation draft needs the draft model", "name it with --draft-model"
        )
    return kind
