"""Many prompts with continuous batching: more than run side by side are answered in turn."""

from __future__ import annotations

import sys
from pathlib import Path

from qeff import QEFFAutoModelForCausalLM

prompts = (Path(__file__).parent / "prompts.txt").read_text().splitlines()
name = sys.argv[1] if len(sys.argv) > 1 else None
model = QEFFAutoModelForCausalLM.from_pretrained(name, continuous_batching=True)
model.compile(full_batch_size=2, ctx_len=128)
info = model.generate(prompts=prompts, generation_len=24, stream=False)
for prompt, text in zip(prompts, info.generated_texts, strict=True):
    print(f"{prompt!r} -> {text!r}")
print(info)
