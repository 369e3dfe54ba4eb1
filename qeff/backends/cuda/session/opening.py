"""From a container to a session: the device, the weights, the stages, and what is left for steps.

Knows the order of things; the work is done elsewhere.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import triton

from qeff.backends.cuda.session.cache import BLOCK_LEN, LayerCache
from qeff.backends.cuda.session.choosing import Chooser
from qeff.backends.cuda.session.executor import Executor
from qeff.backends.cuda.session.experts import Experts
from qeff.backends.cuda.session.flow import Flow
from qeff.backends.cuda.session.memory import LIBRARIES, PIECE, Memory
from qeff.backends.cuda.session.merging import merge
from qeff.backends.cuda.session.padding import row_size
from qeff.backends.cuda.session.reading import Opened, read_program
from qeff.backends.cuda.session.session import CudaSession
from qeff.backends.cuda.session.stages import Product, Workplace
from qeff.backends.cuda.session.tables import reach
from qeff.backends.cuda.session.weights import Weights
from qeff.container.program import Program
from qeff.container.reader import Container
from qeff.core.errors import DeviceMissing
from qeff.core.options import CompileOptions
from qeff.runtime.session import Capabilities, Session

STEP_TOKENS = 8192  # of one sequence in one step
QUICK_TOKENS = 4096  # of prompts beside decodes
_LIVE_VALUES = 4  # of the widest, at once, in the estimate of a step's memory


def open_on_device(
    container: Container, device: str | None, vram_budget: int | None, deterministic: bool
) -> Session:
    """A session on a device, the first GPU when None."""
    place = find_device(device)
    opened = read_program(container)
    memory = Memory(place, vram_budget)
    with ExitStack() as undone:
        undone.callback(memory.lift)  # others are not bound by a session that was not opened
        if vram_budget is not None:
            memory.check(least_bytes(container, opened))
        session = _open(container, opened, memory, deterministic)
        undone.pop_all()
        return session


def _open(container: Container, opened: Opened, memory: Memory, deterministic: bool) -> Session:
    options = container.manifest.options
    with memory.guard("the weights", "take a narrower --precision, or raise --vram-budget"):
        executor, sizes = load(container, opened, memory.device, deterministic)
    room = Room.of(executor, options)
    caps = Capabilities(
        vocab_size=container.manifest.model.vocab_size,
        ctx_len=options.ctx_len,
        block_len=BLOCK_LEN,
        max_sequences=options.max_batch,
        max_step_tokens=room.max_step_tokens,
        max_blocks=memory.max_blocks(room.block_bytes, room.step_bytes, sum(sizes)),
        supports_trees=True,
        quick_tokens=room.quick_tokens,
        window=widest_window(opened.program),
        chooses=not opened.num_heads,  # tokens are chosen from whole rows
        num_heads=opened.num_heads,
        overlaps=not opened.num_heads,
        prepares=memory.device.type == "cuda",
    )
    places = limits(opened.program, options.ctx_len)
    return CudaSession(executor, caps, memory, places, graph_bytes=room.step_bytes // 2)


def load(
    container: Container, opened: Opened, device: torch.device, deterministic: bool
) -> tuple[Executor, list[int]]:
    """The program with its weights on a device, and the sizes of these; ``meta`` holds none."""
    options = container.manifest.options
    flow = Flow(opened.program, same_rows=True)
    groups = merge(flow)
    weights = Weights(container, opened, device)
    weights.load(flow, groups, options.ctx_len)
    workplace = Workplace(opened.compute, device, deterministic, caches(opened))
    workplace.most_rows = row_size(max(64, options.max_batch))
    return Executor(opened.program, groups, weights, workplace), weights.sizes()


@dataclass(frozen=True, slots=True)
class Room:
    """How large steps may be, and what they and a block of the cache take."""

    max_step_tokens: int  # of one sequence
    quick_tokens: int
    step_bytes: int
    block_bytes: int

    @classmethod
    def of(cls, executor: Executor, options: CompileOptions) -> Room:
        """What a container's options ask for."""
        most, count = min(options.ctx_len, STEP_TOKENS), options.max_batch
        quick_tokens = max(options.prefill_seq_len, QUICK_TOKENS)
        widest = max(most, min(quick_tokens, most * count))
        size = Memory.held_for([step_bytes(executor, widest + count, count)]) + LIBRARIES
        block_bytes = sum(cache.bytes_per_block for cache in executor.place.caches)
        return cls(most, quick_tokens, size, block_bytes)


def least_bytes(container: Container, opened: Opened) -> int:
    """What a session needs to serve one sequence of full length; nothing is loaded for it."""
    executor, sizes = load(container, opened, torch.device("meta"), deterministic=False)
    options = container.manifest.options
    room = Room.of(executor, options)
    num_blocks = -(-options.ctx_len // BLOCK_LEN) + 2  # for padding, and what rounding takes
    return Memory.held_for(sizes) + room.step_bytes + num_blocks * room.block_bytes + 2 * PIECE


def find_device(device: str | None) -> torch.device:
    """The device to run on, or an error that says what is missing."""
    if device is not None and device != "cuda":
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if triton.knobs.runtime.interpret:
        return torch.device("cpu")
    raise DeviceMissing(
        "the target 'cuda' needs an NVIDIA GPU, and torch finds none here",
        "run it on such a machine, or compile for the target cpu",
    )


def caches(opened: Opened) -> list[LayerCache]:
    """An empty cache for each that the program names."""
    return [
        LayerCache(opened.kv, layer.num_kv_heads, layer.key_dim, layer.value_dim)
        for layer in opened.program.caches
    ]


def widest_window(program: Program) -> int | None:
    """How far back any layer looks; None where one of them looks at everything."""
    windows = [op.attrs.get("window", 0) for op in program.ops if op.kind == "attention"]
    return max(windows) if windows and all(windows) else None


def limits(program: Program, ctx_len: int) -> tuple[int, int]:
    """As many tokens and positions as every table of the program has rows for."""
    num_tokens = math.inf
    for op in program.ops:
        if op.kind == "embed" and op.inputs[1] == program.tokens:
            rows = program.values[op.inputs[0]].shape[0]
            num_tokens = min(num_tokens, rows - int(op.attrs.get("offset", 0)))
    most = program.values[program.logits].shape[0]
    return int(min(num_tokens, 1 << 62)) if num_tokens != math.inf else most, reach(
        program, ctx_len
    )


def step_bytes(executor: Executor, num_tokens: int, num_rows: int) -> int:
    """An estimate of what the largest step needs besides weights and cache."""
    place = executor.place
    size = place.compute.itemsize
    widest, unpacked, experts = 0, 0, 0
    for stage in executor.stages(same_rows=False):
        if isinstance(stage, Product) and not stage.is_wide:
            rows, columns = stage.matrix.shape
            widest = max(widest, rows + columns)
            if not stage.matrix.is_plain:
                unpacked = max(unpacked, rows * columns * size)
        elif isinstance(stage, Experts):
            chosen = executor.program.values[stage.reads[1]].shape[0]
            experts = max(experts, stage.bytes_of(num_tokens, chosen, place.compute))
    vocab_size = executor.program.values[executor.program.logits].shape[0]
    logits = 2 * max(num_rows, 64) * vocab_size * torch.float32.itemsize
    choosing = Chooser.memory_of(max(num_rows, 64), vocab_size)
    return num_tokens * widest * size * _LIVE_VALUES + unpacked + experts + logits + choosing
