"""The container that a command's words mean: one that is named, or a model's, found or made."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qeff.apps.terminal.flags import compile_options, export_options, find_model
from qeff.core.errors import OptionValueError

if TYPE_CHECKING:
    from qeff.container import Container

# What decides a container when it is compiled, and what stands there when it is not given.
COMPILED: dict[str, Any] = {
    "target": None,
    "precision": None,
    "mxfp6_matmul": False,
    "precision_override": [],
    "calibration": "auto",
    "calibration_file": None,
    "kv_precision": None,
    "mxint8_kv_cache": False,
    "ctx_len": None,
    "prompt_len": None,
    "batch_size": 1,
    "full_batch_size": None,
    "kv_cache_batch_size": None,
    "load_format": "auto",
}


def named_once(args: argparse.Namespace) -> str | None:
    """What MODEL or ``--model-name`` says."""
    if args.model is not None and args.model_name is not None:
        raise OptionValueError(
            f"{args.model} and --model-name {args.model_name} both name a model", "give one of them"
        )
    return args.model if args.model is not None else args.model_name


def refuse_compile_options(args: argparse.Namespace, ref: str, but: Sequence[str] = ()) -> None:
    """No option passes unnoticed: those of compiling have no meaning for a container."""
    for name, default in COMPILED.items():
        if name not in but and getattr(args, name, default) != default:
            raise OptionValueError(
                f"--{name.replace('_', '-')} is decided when a container is compiled,"
                f" and {ref} is one",
                "leave it out, or name the model",
            )


def find_container(args: argparse.Namespace) -> Container:
    """The container that was named, or that of the model, found or made."""
    from qeff.apps.container_path import resolve
    from qeff.apps.pipeline import build
    from qeff.container import Container

    args.model_name = named_once(args)
    if args.model_name is not None and (folder := resolve(args.model_name)):
        refuse_compile_options(args, args.model_name)
        return Container.open(folder)
    options = compile_options(args)
    with args.screen.progress() as progress:
        path = build(find_model(args, progress), export_options(args), options, progress=progress)
    return Container.open(path)
