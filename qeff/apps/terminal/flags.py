"""Groups of options that several commands share, and the option objects made of them.

Names, defaults and meanings are QEfficient's where it has them. Knows how options are written, not
what they do.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from qeff.apps import vendor
from qeff.apps.combinations import SPECULATIVE_MODEL_TYPES, check_context_lengths, same
from qeff.apps.terminal.parser import Parser, device_group, numbers, override, positive, truth
from qeff.core.errors import OptionValueError
from qeff.core.options import (
    CALIBRATIONS,
    KV_PRECISIONS,
    PRECISIONS,
    TARGETS,
    CompileOptions,
    ExportOptions,
    TextFile,
)

if TYPE_CHECKING:
    from qeff.core.progress import Progress
    from qeff.sources import Location

CTX_LEN = 1024
PROMPT_LEN = 128
LOAD_FORMATS = ("auto", "dummy")
CONTEXT_LENGTHS = ("comp_ctx_lengths_prefill", "comp_ctx_lengths_decode")


def add_model_flags(parser: Parser) -> None:
    """Which checkpoint, and how it may be fetched."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--model-name",
        metavar="REF",
        help="checkpoint folder, .gguf file or hub id; default: the built-in SmolLM2-135M-Instruct",
    )
    group.add_argument(
        "--local-model-dir", metavar="DIR", help="folder to read instead of fetching --model-name"
    )
    group.add_argument("--revision", help="branch, tag or commit of a hub id")
    group.add_argument("--cache-dir", metavar="DIR", help="cache folder of the model hub's files")
    group.add_argument("--hf-token", metavar="TOKEN", help="token for gated models")
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the Python code that the checkpoint brings",
    )
    group.add_argument(
        "--speculative-model-type",
        choices=SPECULATIVE_MODEL_TYPES,
        help="turbo: with the heads that guess ahead, which the folder of the model brings",
    )
    group.add_argument(
        "--load-format",
        choices=LOAD_FORMATS,
        default=LOAD_FORMATS[0],
        help="dummy: random weights for the config.json of --model-name, to measure any shape",
    )


def find_model(args: argparse.Namespace, progress: Progress) -> Location:
    """Find, and fetch if need be, the checkpoint that the model flags name."""
    from qeff.apps.container_path import resolve
    from qeff.sources import locate, locate_dummy  # a compiled container needs none of it
    from qeff.sources.speculator import with_heads

    ref = args.local_model_dir or args.model_name
    if ref is not None and resolve(ref):
        raise OptionValueError(
            f"{ref} is a container, not a model", f"run it with qeff execute --qpc-path {ref}"
        )
    if args.local_model_dir and args.cache_dir:
        args.screen.note("--cache-dir has no meaning beside --local-model-dir")
    if args.load_format == "dummy":
        location = locate_dummy(ref, trust_remote_code=args.trust_remote_code)
    else:
        location = locate(
            ref,
            revision=args.revision,
            cache_dir=args.cache_dir,
            token=args.hf_token,
            trust_remote_code=args.trust_remote_code,
            progress=progress,
        )
    is_turbo = args.speculative_model_type == "turbo"
    has_heads = is_turbo or getattr(args, "speculation", None) == "heads"
    return with_heads(location) if has_heads else location


def add_batching_flags(group: Any, default: int | None = None) -> None:
    """The one compile option that also decides the graph; ``default`` is the command's own."""
    what = "sequences that share the cache; turns continuous batching on"
    group.add_argument(
        "--full-batch-size",
        type=positive,
        metavar="N",
        help=what if default is None else f"{what}; default {default}",
    )


def add_compile_flags(
    parser: Parser, *, ctx_len: str = str(CTX_LEN), full_batch_size: int | None = None
) -> None:
    """What decides the container besides the checkpoint; the defaults are the command's own."""
    group = parser.add_argument_group("compile")
    add_format_flags(group)
    group.add_argument(
        "--ctx-len", type=positive, metavar="N", help=f"tokens the cache holds; default {ctx_len}"
    )
    group.add_argument(
        "--prompt-len",
        type=positive,
        metavar="N",
        help=f"tokens of a prompt run in one step; default {PROMPT_LEN}",
    )
    group.add_argument(
        "--batch-size", type=positive, default=1, metavar="N", help="sequences in one step"
    )
    add_batching_flags(group, full_batch_size)
    group.add_argument(
        "--kv-cache-batch-size",
        type=positive,
        metavar="N",
        help="cache slots; default: as many as run",
    )
    _add_vendor_flags(parser)


def add_format_flags(group: Any) -> None:
    """The target, and the number formats of weights and cache."""
    default = CompileOptions().target
    group.add_argument("--target", choices=TARGETS, help=f"what to compile for; default: {default}")
    group.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="number format of the weights; default: auto, which keeps packed checkpoints as they"
        " are and takes fp16 for others (bf16 for the target cuda, fp32 for ort); fp8 is for cuda",
    )
    group.add_argument(
        "--mxfp6-matmul", "--mxfp6", action="store_true", help="the same as --precision mxfp6"
    )
    group.add_argument(
        "--precision-override",
        action="append",
        default=[],
        type=override,
        metavar="PATTERN=PRECISION",
        help="precision of the weight matrices whose names match, such as '*.down_proj*=int8';"
        " may be repeated, the last match counts",
    )
    group.add_argument(
        "--calibration",
        choices=CALIBRATIONS,
        default="auto",
        help="how 4-bit and mx weights are rounded: gptq makes an error good in the weights beside"
        " it, importance weighs errors by the activations, none does neither; default: auto,"
        " which is gptq for weights that are no random numbers",
    )
    group.add_argument(
        "--calibration-file",
        metavar="FILE",
        help="text whose activations decide; default: some pages of our own",
    )
    group.add_argument(
        "--kv-precision",
        choices=KV_PRECISIONS,
        help="number format of the cache; default: auto, fp32 beside fp32 weights, else fp16, and"
        " what is computed in for the target cuda, which has fp8 and bf16 besides",
    )
    add_mxint8_flag(group)


def add_mxint8_flag(group: Any) -> None:
    """QEfficient's ways to ask for an mxint8 cache; one of them takes a word."""
    group.add_argument(
        "--mxint8-kv-cache",
        "--mxint8",
        nargs="?",
        const=True,
        default=False,
        type=truth,
        metavar="BOOL",
        help="the same as --kv-precision mxint8",
    )


def _add_vendor_flags(parser: Parser) -> None:
    group = parser.add_argument_group("options of the targets qaic and qnn")
    add_device_flag(group)
    group.add_argument("--num-cores", type=positive, metavar="N", help="cores of the card")
    group.add_argument("--mos", type=int, metavar="N", help=vendor.COMPILER_OPTIONS["mos"])
    group.add_argument(
        "--enable-qnn", nargs="?", const=True, metavar="CONFIG", help="use the QNN SDK"
    )
    for name in CONTEXT_LENGTHS:
        option = "--" + name.replace("_", "-")
        group.add_argument(option, type=numbers, metavar="N,N", help=argparse.SUPPRESS)
    for name in ("aic-enable-depth-first", "allow-mxint8-mdp-io", "split-retained-state-io"):
        text = vendor.COMPILER_OPTIONS[name.replace("-", "_")]
        group.add_argument(f"--{name}", action="store_true", help=text)
    for name in (
        "aic-hw-version",
        "mdp-load-partition-config",
        "mdp-num-partitions",
        "mdts-mos",
        "node-precision-info",
        "custom-io-file-path",
    ):
        text = vendor.COMPILER_OPTIONS[name.replace("-", "_")]
        group.add_argument(f"--{name}", metavar="X", help=text)
    # Accepted since documents use them; the export here always works that way.
    for name in ("use-onnx-subfunctions", "dynamo", "ccl-enabled"):
        group.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)


def add_device_flag(group: Any) -> None:
    """``--device-group``, which names cards."""
    group.add_argument(
        "--device-group",
        type=device_group,
        metavar="[0,1]",
        help="cards to use; several are sliced",
    )


def vendor_options(args: argparse.Namespace) -> dict[str, Any]:
    """The vendor's options that were given, by name."""
    names = [n for n in (*vendor.COMPILER_OPTIONS, *vendor.SHAPE_OPTIONS) if hasattr(args, n)]
    given = {name: getattr(args, name) for name in names}
    if isinstance(given.get("enable_qnn"), str):
        given |= {"enable_qnn": True, "qnn_config": args.enable_qnn}
    return vendor.given_options(given)


def export_options(args: argparse.Namespace) -> ExportOptions:
    """What decides the graph."""
    return ExportOptions(
        continuous_batching=args.full_batch_size is not None,
        trust_remote_code=getattr(args, "trust_remote_code", False),
    )


def compile_options(args: argparse.Namespace) -> CompileOptions:
    """What decides the container; one note says when a command for the card runs elsewhere."""
    given = vendor_options(args)
    meant = given | ({"device_group": args.device_group} if args.device_group else {})
    target = vendor.choose_target(args.target, given)
    if note := vendor.card_note(args.target, target, meant):
        args.screen.note(note)
    ctx_len = args.ctx_len or CTX_LEN
    lengths = {name: getattr(args, name, None) for name in CONTEXT_LENGTHS}
    is_enabled = getattr(args, "ccl_enabled", False)
    check_context_lengths(ctx_len, is_enabled=is_enabled, **lengths)
    return CompileOptions(
        target=target,
        precision=same(args.precision, "mxfp6" if args.mxfp6_matmul else None, "--precision"),
        kv_precision=same(
            args.kv_precision, "mxint8" if args.mxint8_kv_cache else None, "--kv-precision"
        ),
        precision_overrides=tuple(args.precision_override),
        calibration=args.calibration,
        calibration_file=TextFile.read(args.calibration_file) if args.calibration_file else None,
        # A chunk that nobody asked for shrinks with the context; one that was asked for must fit.
        prefill_seq_len=args.prompt_len or min(PROMPT_LEN, ctx_len),
        ctx_len=ctx_len,
        batch_size=args.batch_size,
        full_batch_size=args.full_batch_size,
        kv_cache_batch_size=args.kv_cache_batch_size,
        num_devices=len(args.device_group or (0,)),
        vendor=vendor.for_target(target, given),
    )
