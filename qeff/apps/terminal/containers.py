"""The container that a command's words mean: one that is named, or a model's, found or made."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qeff.apps.terminal.flags import compile_options, export_options, find_model
from qeff.core.errors import OptionValueError

if TYPE_CHECKING:
    from qeff.container import Container

COMPILED = ("target", "precision", "kv_precision", "ctx_len", "prompt_len", "full_batch_size")


def find_container(args: argparse.Namespace) -> Container:
    """The container that was named, or that of the model, found or made."""
    from qeff.apps.container_path import resolve
    from qeff.apps.pipeline import build
    from qeff.container import Container

    if args.model is not None:
        if args.model_name is not None:
            raise OptionValueError(
                f"{args.model} and --model-name {args.model_name} both name a model",
                "give one of them",
            )
        if folder := resolve(args.model):
            for name in COMPILED:
                if getattr(args, name) is not None:
                    raise OptionValueError(
                        f"--{name.replace('_', '-')} is decided when a container is compiled,"
                        f" and {args.model} is one",
                        "leave it out, or name the model",
                    )
            return Container.open(folder)
        args.model_name = args.model
    options = compile_options(args)
    with args.screen.progress() as progress:
        path = build(find_model(args, progress), export_options(args), options, progress=progress)
    return Container.open(path)
