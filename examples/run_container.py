"""Run a compiled container by its path: needs neither torch nor the checkpoint.

Make one with: qeff compile --ctx-len 256 --qpc-path my-container
"""

from __future__ import annotations

import sys

import qeff

container = qeff.Container.open(sys.argv[1])
with qeff.Engine(qeff.open_session(container), qeff.Text.from_container(container)) as engine:
    prompts = ["My name is", "The sun rises from"]
    for result in engine.generate(prompts, qeff.SamplingParams(max_tokens=16)):
        print(repr(result.text), result.finish, f"{result.decode_tokens_per_s:.1f} tokens/s")
assert "torch" not in sys.modules
