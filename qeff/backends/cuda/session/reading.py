"""program.json of this target: the program, and the engine's own settings beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import torch

from qeff.backends.cuda.session.cache import FORMATS
from qeff.backends.cuda.session.matrix import PLAIN
from qeff.container.program import Program
from qeff.container.reader import Container
from qeff.core.errors import ContainerError
from qeff.ops import validate
from qeff.runtime.session import count_heads

PROGRAM = "program.json"
LAYOUT = 1
SCALES = ".scales"  # behind a packed matrix's name, its scales


@dataclass(frozen=True, slots=True)
class Opened:
    """A checked program and how it is computed."""

    program: Program
    compute: torch.dtype
    kv: str
    drawn: frozenset[str]  # matrices that no file holds, to be filled with random numbers
    num_heads: int = 0  # that guess later tokens; their logits follow the model's in a row


def read_program(container: Container) -> Opened:
    """Read and check; anything wrong is a ContainerError."""
    path = container.file(PROGRAM)
    try:
        data = json.loads(container.read_bytes(PROGRAM))
        engine = data["engine"]
        if engine["layout"] != LAYOUT:
            raise ContainerError(
                f"{path} has the layout {engine['layout']!r}, this release reads {LAYOUT}",
                "compile again",
            )
        opened = Opened(
            Program.from_json(data),
            PLAIN[engine["compute"]],
            str(engine["kv"]),
            frozenset(map(str, engine["drawn"])),
        )
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise ContainerError(f"{path} is malformed: {error!r}", "compile again") from error
    if opened.kv not in FORMATS:
        raise ContainerError(f"{path} names the cache format {opened.kv!r}", "compile again")
    validate(opened.program)
    width = opened.program.values[opened.program.logits].shape[0]
    vocab_size = container.manifest.model.vocab_size
    num_heads = count_heads(width, vocab_size)
    if num_heads is None:
        raise ContainerError(
            f"program gives {width} logits, the model has {vocab_size} tokens", "compile again"
        )
    return replace(opened, num_heads=num_heads)
