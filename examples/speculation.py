"""Tokens guessed ahead: the same text in fewer steps. Uses the built-in model; name another."""

from __future__ import annotations

import sys

from qeff import QEFFAutoModelForCausalLM, SpeculationConfig

model = QEFFAutoModelForCausalLM.from_pretrained(sys.argv[1] if len(sys.argv) > 1 else None)
model.compile(ctx_len=256)
prompt = "Repeat: the cat sat on the mat, the cat sat on the mat, the cat"
plain = model.generate(prompts=[prompt], generation_len=40, stream=False)
for kind in ("prompt_lookup", "lookahead"):
    config = SpeculationConfig(kind=kind, is_adaptive=False)
    info = model.generate(prompts=[prompt], generation_len=40, stream=False, speculation=config)
    assert info.generated_texts == plain.generated_texts
    print(f"{kind}: {model.results[0].num_accepted} of {model.results[0].num_drafted} right")
