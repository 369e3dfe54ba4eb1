"""The options that only a vendor's compiler understands, and what becomes of them elsewhere.

They are kept by name for the targets that read them. On any other target the result is the same
without them, and ``card_note`` says so in one line. A name that is in no table is a typing mistake
and an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qeff.compile.specialize import DEFAULT_NUM_CORES
from qeff.compile.targets import available_targets
from qeff.core.env import qnn_sdk_root
from qeff.core.errors import CompileError, OptionTypeError, nearest, unknown_name
from qeff.core.options import TARGETS, CompileOptions
from qeff.core.progress import log

CARD_SDK = Path("/opt/qti-aic")  # where the vendor's installer puts it; there is no variable for it

# Options of the card's compiler: name, and what it means.
COMPILER_OPTIONS = {
    "num_cores": "cores of the card to compile for",
    "mos": "effort to lower on-chip memory",
    "mdts_mos": "the same for several devices",
    "aic_enable_depth_first": "depth-first scheduling",
    "aic_hw_version": "generation of the card",
    "aic_num_cores": "cores, in the compiler's own spelling",
    "allow_mxint8_mdp_io": "mxint8 for traffic between cards",
    "custom_io_file_path": "custom IO list to use instead of the written one",
    "enable_qnn": "compile with the QNN SDK",
    "io_encrypt": "encrypt inputs and outputs",
    "mdp_compiler_dump_path": "compiler dump for partitioning",
    "mdp_dump_partition_config": "where to write the partition",
    "mdp_load_partition_config": "partition file to use",
    "mdp_num_partitions": "pipeline stages",
    "mdp_strategy": "how to partition",
    "node_precision_info": "precision of single nodes",
    "qnn_config": "configuration file of the QNN SDK",
    "specializations": "shape specialisations to use instead of the made ones",
    "split_retained_state_io": "one buffer for each cache",
    "user_tiled": "tiling given by the user",
}

# Options that shape a card's program and have their own meaning, or none to speak of, elsewhere:
# giving one of them does not ask for the card.
NEUTRAL_OPTIONS = {
    "comp_ctx_lengths_decode": "context lengths to specialise decode for",
    "comp_ctx_lengths_prefill": "context lengths to specialise prefill for",
    "num_speculative_tokens": "tokens verified in one step",
}

# Options of QEfficient's classes that shape the card's program. The program here takes any number
# of tokens of any sequence at any length, so that they change nothing on other targets.
SHAPE_OPTIONS = {
    **NEUTRAL_OPTIONS,
    "enable_chunking": "prefill in chunks",
    "kv_cache_prefix": "prefix of the cache names",
    "moe_prefill_packed_chunk_size": "tokens per packed expert chunk",
    "prefill_only": "no decode program",
    "retain_full_kv": "keep the whole cache of windowed layers",
}

# How QEfficient's exporter should work. Here the export always traces with torch.export, keeps
# functions and maps the weights, so that these are accepted and change nothing.
UNNEEDED = (
    "ccl_enabled",
    "compile_only",
    "dynamo",
    "layerwise",
    "layerwise_window_size",
    "offload_pt_weights",
    "qaic_config",
    "use_onnx_subfunctions",
)


def given_options(options: Mapping[str, Any], parameters: Iterable[str] = ()) -> dict[str, Any]:
    """The options that were given; one that nobody knows raises, with the nearest name as the hint.

    ``parameters`` are the names that the caller takes itself, and that a mistyped one may have
    meant.
    """
    known = (*COMPILER_OPTIONS, *SHAPE_OPTIONS, *UNNEEDED)
    for name in options:
        if name not in known:
            close = nearest(name, [*parameters, *known])
            hint = f"did you mean {close!r}?" if close else None
            raise OptionTypeError(f"unknown option {name!r}", hint)
    kept = {name: value for name, value in options.items() if name not in UNNEEDED}
    return {name: value for name, value in kept.items() if value is not None and value is not False}


def choose_target(asked: str | None, vendor: Mapping[str, Any]) -> str:
    """The target to compile for: the one asked for, else the card's when it is there."""
    default = CompileOptions().target
    wanted = asked or (_meant_by(vendor) if for_card(vendor) else default)
    if wanted == default or (asked is None and missing(wanted) is not None):
        return default
    if wanted in available_targets():
        return wanted
    if asked is None:
        return default
    if asked not in TARGETS:
        raise unknown_name("target", asked, TARGETS)
    raise CompileError(
        f"this release cannot compile for the target {asked!r}",
        f"available: {', '.join(available_targets())}",
    )


def card_note(
    asked: str | None, target: str, meant: Mapping[str, Any], *, in_python: bool = False
) -> str | None:
    """One line that says why what is meant for the card runs on the cpu; None when it is not.

    Options are named as a command line has them, or as Python's parameters.
    """
    if asked is not None or not for_card(meant) or target in _NEEDS:
        return None
    wanted = _meant_by(meant)
    why = missing(wanted) or f"this release has no target {wanted}"
    names = list(for_card(meant))
    if not in_python:  # where the QNN SDK's configuration is the value of --enable-qnn
        names = ["--" + name.replace("_", "-") for name in names if name != "qnn_config"]
    matter = "matters" if len(names) == 1 else "matter"
    return f"running on cpu (target {target}): {why}; {', '.join(names)} only {matter} to {wanted}"


def target_options(asked: str | None, vendor: Mapping[str, Any]) -> dict[str, Any]:
    """``target`` and ``vendor`` of the compile options; a warning says when it is not the card."""
    target = choose_target(asked, vendor)
    if note := card_note(asked, target, vendor, in_python=True):
        log.warning(note)
    return {"target": target, "vendor": for_target(target, vendor)}


def for_card(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that nobody gives who does not mean a card."""
    return {name: value for name, value in options.items() if name not in NEUTRAL_OPTIONS}


def for_target(target: str, vendor: Mapping[str, Any]) -> dict[str, Any]:
    """What of the vendor's options decides the bytes of a container for ``target``."""
    if target in _NEEDS:
        return dict(vendor)
    # Every container holds the vendor's partition file, which names the cores.
    num_cores = vendor.get("num_cores", DEFAULT_NUM_CORES)
    return {} if num_cores == DEFAULT_NUM_CORES else {"num_cores": num_cores}


def missing(target: str) -> str | None:
    """Why a vendor's target cannot compile on this machine; None when it can."""
    return _NEEDS[target]() if target in _NEEDS else None


def _card_needs() -> str | None:
    found = (CARD_SDK / "exec" / "qaic-compile").exists()
    return None if found else "no Cloud AI card and SDK on this machine"


def _qnn_needs() -> str | None:
    return None if qnn_sdk_root() else "the QNN SDK is not installed (QNN_SDK_ROOT is not set)"


_NEEDS = {"qaic": _card_needs, "qnn": _qnn_needs}


def _meant_by(vendor: Mapping[str, Any]) -> str:
    return "qnn" if vendor.get("enable_qnn") else "qaic"
