"""``qeff inspect``: what is in a checkpoint, a graph or a container.

Sizes, precision, signature and certificate, for reading or as JSON. ``--verify`` checks every byte.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from qeff.apps.terminal.parser import Parser
from qeff.apps.terminal.screen import amount, hanging

HELP = "show what is in a checkpoint, a graph or a container"

_COLUMN = 14
_CLASSES = ("linear", "value", "head", "embedding", "other", "kv")


def add_arguments(parser: Parser) -> None:
    """What to look at, and how."""
    parser.usage = f"{parser.prog} [PATH] [options]"
    parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        help="checkpoint, graph, container or hub id; default: the built-in model",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--verify", action="store_true", help="check or show the hash of every byte"
    )


def run(args: argparse.Namespace) -> int:
    """Find out what it is and describe it."""
    from qeff.apps.description import describe

    with args.screen.progress() as progress:
        found = describe(args.path, verify=args.verify, progress=progress)
    print(json.dumps(found) if args.json else "\n".join(lines(found)))
    return 0


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """A description for reading."""
    views = {"container": _container, "graph": _graph, "checkpoint": _checkpoint}
    for name, text in views[found["what"]](found):
        yield hanging(f"{name:<{_COLUMN}}{text}", _COLUMN)


def _checkpoint(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "checkpoint", found["path"]
    yield "model", f"{found['name']} ({found['architecture'] or found['model_type']})"
    yield "parameters", f"{found['num_params']:,} in {found['weights']['tensors']} tensors"
    yield "size", amount(found["total_bytes"])
    yield from _formats(found["weights"]["bytes_by_format"])
    for name, value in found["config"].items():
        yield "", f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"
    text = found["text"]
    yield "text", ", ".join(text["files"]) or "no tokenizer"
    yield "chat", "has a chat template" if text["has_chat_template"] else "no chat template"
    if "sha256" in found:
        yield "sha256", found["sha256"]


def _graph(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "graph", found["path"]
    yield from _model(found["spec"])
    yield "size", amount(found["total_bytes"])
    ops = ", ".join(f"{count} {name}" for name, count in list(found["ops"].items())[:8])
    yield "nodes", f"{found['nodes']}: {ops}, …"
    yield "weights", ", ".join(f"{count} {name}" for name, count in found["formats"].items())
    border = [(name, *kind) for name, kind in found["signature"].items()]
    yield from _border("signature", [f"{name} {dtype} {shape}" for name, dtype, shape in border])
    yield from _export(found["certificate"])


def _container(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "container", found["path"]
    yield from _model(found["model"])
    yield "target", found["target"]
    yield "precision", _precision(found["precision"])
    yield "size", f"{amount(found['total_bytes'])} in {len(found['files'])} files"
    yield from _formats(found["weights"]["bytes_by_format"])
    if "program" in found:
        yield from _program(found["program"])
    for item in found["specialisations"]:
        yield item["name"].lower(), ", ".join(f"{k} {v}" for k, v in item["symbols"].items())
    for name in ("inputs", "outputs"):
        ports = found["signature"][name]
        yield from _border(
            name, [f"{p['name']} {p['dtype']} [{', '.join(map(str, p['shape']))}]" for p in ports]
        )
    source = found["provenance"].get("source", {})
    yield (
        "made from",
        f"{source.get('name')} ({source.get('kind')}, {source.get('sha256', '')[:16]})",
    )
    certificate = found.get("certificate", {})
    yield from _export(certificate.get("export", {}))
    for name, values in certificate.get("quantisation", {}).items():
        numbers = (f"{key.replace('_', ' ')} {_number(value)}" for key, value in values.items())
        yield "quantisation", f"{name}: {', '.join(numbers)}"
    if quality := certificate.get("quality"):
        yield (
            "quality",
            f"KL divergence {_number(quality['kl'])} nats, {quality['top1']:.1%} of likeliest "
            f"tokens equal (against fp32, {quality['tokens']} tokens of {quality['text']})",
        )
    if why := certificate.get("unmeasured"):
        yield "quality", f"not measured: {why}"


def _precision(formats: Mapping[str, str]) -> str:
    """Formats by class, the largest classes first, and the user's word last."""
    known = [name for name in _CLASSES if name in formats]
    rest = sorted(set(formats) - set(known) - {"asked"})
    text = ", ".join(f"{name} {formats[name]}" for name in (*known, *rest))
    return f"{text} (asked for: {formats['asked']})" if "asked" in formats else text


def _program(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    ops = list(found["ops"].items())
    shown = ", ".join(f"{count} {name}" for name, count in ops[:8]) + (", …" if ops[8:] else "")
    yield "program", f"{sum(found['ops'].values())} ops: {shown}"
    if found["engine"]:
        yield "engine", ", ".join(f"{name} {value}" for name, value in found["engine"].items())


def _model(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "model", f"{spec['name']} ({spec['architecture']})"
    yield (
        "parameters",
        f"{spec['num_params']:,}, {spec['num_layers']} layers, vocabulary {spec['vocab_size']:,}",
    )


def _formats(sizes: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    if sizes:
        yield "weights", ", ".join(f"{name} {amount(size)}" for name, size in sizes.items())


def _border(name: str, ports: list[str]) -> Iterator[tuple[str, str]]:
    """Inputs or outputs, one in a line; the caches, which differ by their number only, in one."""
    plain = [port for port in ports if not port.startswith("past_")]
    caches = [port for port in ports if port.startswith("past_")]
    if caches:
        more = f", and {len(caches) - 1} more like it" if len(caches) > 1 else ""
        plain.append(caches[0] + more)
    for i, port in enumerate(plain):
        yield name if i == 0 else "", port


def _export(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How near the graph comes to the original model."""
    if not values:
        return
    yield (
        "certificate",
        f"largest error {values['max_abs_error']:.2g} of logits up to {values['max_logit']:.3g}, "
        f"{values['equal_greedy_tokens']} of {values['tokens_compared']} greedy tokens equal "
        f"(against eager PyTorch, by {values['method']})",
    )
    versions = values.get("versions", {})
    yield "made with", ", ".join(f"{name} {version}" for name, version in versions.items())


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
