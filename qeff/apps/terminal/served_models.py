"""The models that ``qeff serve`` is told to serve: their containers, found or made, under names.

What is compiled for serving takes many sequences and a longer context than a single answer needs.
"""

from __future__ import annotations

import argparse
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from qeff.apps.server.config import CTX_LEN, FULL_BATCH_SIZE
from qeff.apps.terminal.containers import named_once, refuse_compile_options
from qeff.apps.terminal.flags import compile_options, export_options, find_model
from qeff.apps.terminal.running import setup_of, with_draft
from qeff.core.errors import OptionValueError

if TYPE_CHECKING:
    from qeff.apps.opening import Setup
    from qeff.apps.server.models import Entry
    from qeff.container import Container
    from qeff.core.progress import Progress

MEMORY_SHARE = 0.8  # of the machine's, for one server


def find_entries(args: argparse.Namespace) -> tuple[list[Entry], int]:
    """The models in the order that they were named, and how many sequences the first runs."""
    from qeff.apps.server.models import Entry

    setup = setup_of(args)  # what cannot be meant is said before a model is compiled
    setup = replace(setup, prepares=not args.no_prepare)
    entries = []
    num_sequences = 0
    for name, ref in _named(args):
        container = _find(args, ref)
        options = container.manifest.options
        own = name or container.manifest.model.name
        num_sequences = num_sequences or options.max_batch
        entries.append(
            Entry(
                name=own,
                path=container.path,
                ctx_len=options.ctx_len,
                setup=_with_cache(args, container, with_draft(args, setup, options)),
            )
        )
    return entries, num_sequences


def _with_cache(args: argparse.Namespace, container: Container, setup: Setup) -> Setup:
    """The setup with a cache as large as was asked for, or as memory allows."""
    from qeff.apps.machine import memory_bytes
    from qeff.apps.server.footprint import cache_tokens_within

    if args.cache_tokens is not None:
        return replace(setup, cache_tokens=args.cache_tokens)
    budget = args.memory_limit or int(memory_bytes() * MEMORY_SHARE)
    num_tokens = cache_tokens_within(container, budget // args.replicas)
    if num_tokens is not None:
        args.screen.note(f"the cache holds {num_tokens} tokens: more does not fit into memory")
    return replace(setup, cache_tokens=num_tokens)


def _named(args: argparse.Namespace) -> list[tuple[str | None, str | None]]:
    """Names and references; the first is the one that clients need not name."""
    first = named_once(args)
    named = [_split(text) for text in args.models]
    if first is not None or args.local_model_dir or not named:
        return [(args.served_model_name, first), *named]
    if args.served_model_name is not None:
        named[0] = (args.served_model_name, named[0][1])
    return list(named)


def _split(text: str) -> tuple[str | None, str]:
    name, equals, ref = text.partition("=")
    if not equals or Path(text).expanduser().exists():
        return None, text
    if not name or not ref:
        raise OptionValueError(f"{text!r} is not NAME=MODEL", "for example: --model small=org/name")
    return name, ref


def _find(args: argparse.Namespace, ref: str | None) -> Container:
    """The container of a reference, compiled for serving if it is a model."""
    from qeff.apps.container_path import resolve
    from qeff.container import Container

    if ref is not None and (folder := resolve(ref)):
        if not args.models:  # of several, such an option may be meant for another
            refuse_compile_options(args, ref)
        return Container.open(folder)
    own = copy(args)
    own.model_name = ref
    if own.full_batch_size is None and own.batch_size == 1:
        own.full_batch_size = FULL_BATCH_SIZE
    with args.screen.progress() as progress:
        return Container.open(_build(own, progress))


def _build(args: argparse.Namespace, progress: Progress) -> Path:
    from qeff.apps.pipeline import build, cached_container
    from qeff.container.format import MANIFEST
    from qeff.sources.context_length import context_length

    location = find_model(args, progress)
    if args.ctx_len is None:
        args.ctx_len = CTX_LEN
        folder = cached_container(location, export_options(args), compile_options(args))
        if not (folder / MANIFEST).is_file():  # what is there was made for a context that fits
            args.ctx_len = min(CTX_LEN, context_length(location) or CTX_LEN)
    return build(location, export_options(args), compile_options(args), progress=progress)
