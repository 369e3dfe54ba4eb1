"""What this machine has: processor, memory, libraries, vendor tools, the hub, the cache.

Plain facts, looked up without loading any heavy library. What they mean for a target is
``doctor``'s business.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from qeff._native import load
from qeff.core.env import cache_root, forced_isa, hub_is_offline, hub_timeout_seconds
from qeff.core.errors import ResourceError

LIBRARIES = (
    "numpy",
    "tokenizers",
    "onnxruntime",
    "torch",
    "transformers",
    "onnx",
    "onnx-ir",
    "safetensors",
    "gguf",
    "huggingface-hub",
)
# Instruction sets that make number crunching faster, by the kernel's names for them.
_ARM = ("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2")
_X86 = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_vbmi", "avx_vnni", "amx_int8")
_FEATURES = (*_ARM, *_X86)


def processor() -> dict[str, Any]:
    """Name, cores that this process may use, and number-crunching features."""
    info = _cpu_info()
    flags = set(info.get("flags", info.get("Features", "")).split())
    return {
        "name": info.get("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": len(_usable_processors()),
        "physical_cores": physical_cores(),
        "features": [name for name in _FEATURES if name in flags],
    }


def physical_cores() -> int:
    """Cores that this process may use, hardware threads of one counted once.

    As many threads as the native engine takes unless told.
    """
    return len({_core_of(number) for number in _usable_processors()})


def engine() -> dict[str, Any]:
    """The native engine: its instruction sets, best first, and the one that is forced, if any.

    Where it cannot be loaded, ``isas`` is empty, and ``why`` and ``hint`` say more.
    """
    try:
        isas = load().isas()
    except ResourceError as error:
        return {"isas": [], "forced": forced_isa(), "why": error.what, "hint": error.hint}
    return {"isas": isas, "forced": forced_isa()}


def memory_bytes() -> int:
    """Physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def libraries() -> dict[str, str | None]:
    """Installed version of each library that some part needs; None when it is missing."""
    return {name: _version(name) for name in LIBRARIES}


def gpus() -> list[str]:
    """NVIDIA GPUs by name, as the driver's own tool tells."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return (
        [line.strip() for line in done.stdout.splitlines() if line.strip()]
        if done.returncode == 0
        else []
    )


def hub() -> dict[str, Any]:
    """Whether the model hub answers, and how soon; an unreachable one is given up after seconds."""
    if hub_is_offline():
        return {"reachable": False, "why": "HF_HUB_OFFLINE is set"}
    if _version("huggingface-hub") is None:
        return {"reachable": False, "why": "huggingface_hub is not installed"}
    from huggingface_hub.constants import ENDPOINT

    return {"endpoint": ENDPOINT} | _ask(ENDPOINT)


_ASK = """
import sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=float(sys.argv[2]))
except OSError as error:
    sys.exit(str(getattr(error, "reason", error)))
"""


def _ask(url: str) -> dict[str, Any]:
    """Ask for a page in another process, since a name look-up cannot be given a time limit here."""
    limit = hub_timeout_seconds()
    words = [sys.executable, "-c", _ASK, url, str(limit)]
    began = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit + 1, check=False)
    except subprocess.TimeoutExpired:
        return {"reachable": False, "why": f"no answer within {limit:g} s"}
    if done.returncode:
        return {"reachable": False, "why": done.stderr.strip() or "no answer"}
    return {"reachable": True, "seconds": round(time.monotonic() - began, 2)}


def cache() -> dict[str, Any]:
    """Where the cache is, how much is in it, and how much room is left."""
    root = cache_root()
    sizes = (
        [path.lstat().st_size for path in root.rglob("*") if path.is_file()]
        if root.is_dir()
        else []
    )
    place = next(parent for parent in (root, *root.parents) if parent.exists())
    return {
        "path": str(root),
        "bytes": sum(sizes),
        "files": len(sizes),
        "containers": len(list(root.glob("*/qpc-*/manifest.json"))),
        "free_bytes": shutil.disk_usage(place).free,
        "can_write": place.is_dir() and os.access(place, os.W_OK),
    }


def _version(name: str) -> str | None:
    from importlib import metadata  # takes longer to load than all else here

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _usable_processors() -> list[int]:
    """Numbers of the logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _core_of(processor: int) -> tuple[str, str]:
    """Package and core of a logical processor; where the system does not tell, one of its own."""
    folder = Path(f"/sys/devices/system/cpu/cpu{processor}/topology")
    try:
        package = (folder / "physical_package_id").read_text().strip()
        return package, (folder / "core_id").read_text().strip()
    except OSError:
        return "processor", str(processor)


def _cpu_info() -> dict[str, str]:
    """The first processor's entry in the kernel's table; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
