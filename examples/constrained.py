"""An answer that is JSON of a given form. Uses the built-in model; name another."""

from __future__ import annotations

import json
import sys

from qeff import Constraint, QEFFAutoModelForCausalLM

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "year": {"type": "integer", "minimum": 1}},
    "required": ["city", "year"],
    "additionalProperties": False,
}
model = QEFFAutoModelForCausalLM.from_pretrained(sys.argv[1] if len(sys.argv) > 1 else None)
model.compile(ctx_len=256)
constraint = Constraint.json_schema(SCHEMA)
for piece in model.stream("A city and a year as JSON:", generation_len=100, constraint=constraint):
    print(piece.text, end="", flush=True)
print()
assert piece.result is not None
if piece.result.finish != "length":
    assert json.loads(piece.result.text)["city"] in ("Oslo", "Rome")
