"""Sampled text, streamed token by token through the engine; equal seeds give equal text."""

from __future__ import annotations

import sys

import qeff

ref = sys.argv[1] if len(sys.argv) > 1 else None
path = qeff.build(ref, qeff.ExportOptions(), qeff.CompileOptions(ctx_len=256))
container = qeff.Container.open(path)
params = qeff.SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=40, stop=("\n\n",))
with qeff.Engine(qeff.open_session(container), qeff.Text.from_container(container)) as engine:
    for delta in engine.stream("The best thing about the sea is", params):
        print(delta.text, end="", flush=True)
print()
