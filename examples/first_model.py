"""The first model from Python: find, compile, generate. Uses the built-in model; name another."""

from __future__ import annotations

import sys

from qeff import QEFFAutoModelForCausalLM

model = QEFFAutoModelForCausalLM.from_pretrained(sys.argv[1] if len(sys.argv) > 1 else None)
model.compile(ctx_len=256)
info = model.generate(prompts=["Once upon a time"], generation_len=40)
print(info)
