"""``qeff doctor``: what this machine offers each target, what is missing, and how to get it.

Looks only; nothing is installed, downloaded or changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qeff.apps import machine, vendor
from qeff.apps.terminal.parser import Parser
from qeff.apps.terminal.screen import amount, hanging
from qeff.compile.targets import available_targets
from qeff.core.options import TARGETS

HELP = "show what this machine offers each target, and what is missing"

_BUILD = ("torch", "transformers", "onnx", "onnx-ir", "safetensors", "huggingface-hub")
_GET_BUILD = "pip install 'qeff[build]'"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something works here; if not, why, and the way to get it."""

    works: bool
    what: str
    hint: str | None = None


def add_arguments(parser: Parser) -> None:
    """One switch."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Look at everything and print it."""
    facts = look()
    print(json.dumps(facts, default=asdict) if args.json else "\n".join(lines(facts)))
    return 0


def look() -> dict[str, Any]:
    """All facts and verdicts."""
    facts: dict[str, Any] = {
        "processor": machine.processor(),
        "memory_bytes": machine.memory_bytes(),
        "libraries": machine.libraries(),
        "gpus": machine.gpus(),
        "engine": machine.engine(),
    }
    return facts | {
        "targets": {name: verdict(name, facts) for name in TARGETS},
        "build": _build_verdict(facts["libraries"]),
        "hub": machine.hub(),
        "cache": machine.cache(),
    }


def verdict(target: str, facts: Mapping[str, Any]) -> Verdict:
    """What a target can do on a machine of which these facts are known."""
    why = vendor.missing(target)
    if target not in available_targets():
        return Verdict(False, "not part of this release" + (f"; {why}" if why else ""))
    if why:
        return Verdict(False, why, "install the vendor's SDK")
    if target == "cpu":
        return _engine_verdict(facts["engine"], facts["processor"]["physical_cores"])
    if target == "cuda" and not facts["gpus"]:
        return Verdict(False, "no NVIDIA GPU on this machine")
    if target == "ort":
        version = facts["libraries"]["onnxruntime"]
        if version is None:
            return Verdict(False, "onnxruntime is not installed", "pip install onnxruntime")
        return Verdict(True, f"ONNX Runtime {version} on the cpu")
    if target == "reference":
        return Verdict(True, "numpy, slow and exact: for checking other targets")
    return Verdict(True, "ready")


def _engine_verdict(engine: Mapping[str, Any], threads: int) -> Verdict:
    isas, forced = engine["isas"], engine["forced"]
    if not isas:
        return Verdict(False, engine["why"], engine["hint"])
    names = ", ".join(isas)
    if forced is None:
        how = "best first" if len(isas) > 1 else "the only one here"
        return Verdict(True, f"native engine: {names} ({how}), {_count(threads, 'thread')}")
    if forced not in isas:
        what = f"QEFF_ISA is {forced}, which is not there; there is {names}"
        return Verdict(False, what, "unset QEFF_ISA, or set it to one of these")
    what = f"native engine: {forced} (by QEFF_ISA; there is {names}), {_count(threads, 'thread')}"
    return Verdict(True, what)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _build_verdict(found: dict[str, str | None]) -> Verdict:
    lacking = [name for name in _BUILD if found[name] is None]
    if lacking:
        what = f"missing: {', '.join(lacking)}; containers can be run, not made"
        return Verdict(False, what, _GET_BUILD)
    what = f"torch {found['torch']}, transformers {found['transformers']}"
    if found["gguf"] is None:
        return Verdict(True, f"{what}; without gguf, from safetensors only", "pip install gguf")
    return Verdict(True, what)


def lines(facts: dict[str, Any]) -> list[str]:
    """The facts for reading."""
    cpu, hub, cache = facts["processor"], facts["hub"], facts["cache"]
    features = f" ({' '.join(cpu['features'])})" if cpu["features"] else ""
    out = [
        f"processor   {cpu['name']}, {_cores_line(cpu)}{features}",
        f"memory      {amount(facts['memory_bytes'])}",
        f"gpu         {', '.join(facts['gpus']) or 'none'}",
        f"cache       {cache['path']}: {amount(cache['bytes'])}, {cache['containers']} containers, "
        f"{amount(cache['free_bytes'])} free",
        f"hub         {_hub_line(hub)}",
        "libraries   " + ", ".join(f"{n} {v}" for n, v in facts["libraries"].items() if v),
        "",
        *_verdict_lines("build", facts["build"]),
    ]
    if not cache["can_write"]:
        out.insert(
            4, "            hint: the cache cannot be written; set QEFF_HOME to another folder"
        )
    for name, item in facts["targets"].items():
        out += _verdict_lines(name, item)
    return [hanging(line, 12) for line in out]


def _cores_line(cpu: Mapping[str, Any]) -> str:
    cores = _count(cpu["physical_cores"], "core")
    if cpu["physical_cores"] == cpu["cores"]:
        return cores
    return f"{cores} with {cpu['cores']} hardware threads"


def _hub_line(hub: dict[str, Any]) -> str:
    if hub["reachable"]:
        return f"{hub['endpoint']} answers in {hub['seconds']} s"
    return f"not reachable: {hub['why']} (the built-in model and local checkpoints need no hub)"


def _verdict_lines(name: str, item: Verdict) -> list[str]:
    head = f"{name:<12}{'yes' if item.works else 'no '} {item.what}"
    return [head, f"{'':12}    hint: {item.hint}"] if item.hint else [head]
