"""Every environment variable that this project reads, in one table; read when asked, never kept.

Libraries below us read their own (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE, OMP_NUM_THREADS); they are
not repeated here.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from qeff.core.errors import OptionValueError

VARIABLES = {
    "QEFF_HOME": "cache root; default $XDG_CACHE_HOME/qeff_cache, else ~/.cache/qeff_cache",
    "XDG_CACHE_HOME": "parent of the cache root when QEFF_HOME is not set",
    "QEFF_HUB_TIMEOUT": "seconds to wait for the model hub before giving it up; default 5",
    "QEFF_ISA": "instruction set of the native engine; read by the engine itself; default the best",
    "QEFF_<OPTION>": "an option of qeff serve that is not given on the command line",
    "RAY_ADDRESS": "the Ray cluster of qeff serve --ray; a local one is started when not set",
    "NO_COLOR": "any value turns colour off",
    "QNN_SDK_ROOT": "where Qualcomm's QNN SDK is installed",
}


def cache_root() -> Path:
    """Where downloads, graphs and containers are kept."""
    if home := os.environ.get("QEFF_HOME"):
        return Path(home).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "qeff_cache"


def hub_timeout_seconds() -> float:
    """How long an unreachable hub may take to be noticed."""
    text = os.environ.get("QEFF_HUB_TIMEOUT") or "5"
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise OptionValueError(
            f"QEFF_HUB_TIMEOUT is {text!r}, which is no number of seconds",
            "set it to 5, or unset it",
        )
    return seconds


def hub_is_offline() -> bool:
    """Whether huggingface_hub was told not to use the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def forced_isa() -> str | None:
    """The instruction set that the native engine is told to use."""
    return os.environ.get("QEFF_ISA") or None


def option_values() -> dict[str, str]:
    """Every variable QEFF_<NAME> by its name in small letters, for options that have one."""
    prefix = "QEFF_"
    found = {name: text for name, text in os.environ.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix).lower(): text for name, text in found.items()}


def wants_color() -> bool:
    """Whether coloured output is allowed."""
    return "NO_COLOR" not in os.environ


def mute_library_bars() -> None:
    """Keep other libraries' progress bars off the terminal, for the command line's own."""
    for name in ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")


def ray_address() -> str | None:
    """The Ray cluster that the user named."""
    return os.environ.get("RAY_ADDRESS") or None


def prepare_ray() -> None:
    """Have Ray report its use to nobody and show every line of a log; before it is imported."""
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_DEDUP_LOGS"):
        os.environ.setdefault(name, "0")


def qnn_sdk_root() -> Path | None:
    """The QNN SDK's folder, when the user named one."""
    root = os.environ.get("QNN_SDK_ROOT")
    return Path(root) if root else None
