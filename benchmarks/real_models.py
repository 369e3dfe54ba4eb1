"""Real checkpoints through `qeff infer`, beside transformers' own greedy decoding.

    python benchmarks/real_models.py MODEL.gguf|FOLDER … [--new-tokens 32] [--target cpu]

Each model runs twice through the command line (the second time from the cache) and once in
transformers, all in fp32; the first tokens must be equal. Both get the same token ids, since
transformers leaves out the beginning-of-text token that some GGUF files ask for. Text, seconds and
peak memory are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

PROMPT = "The three primary colours are"

PEER = """
import json, sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM
path, prompt, count = Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
if path.is_dir():
    where = {"pretrained_model_name_or_path": path}
model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
ids = torch.tensor([prompt])
with torch.no_grad():
    out = model.generate(ids, max_new_tokens=count, do_sample=False, repetition_penalty=1.0)
print(json.dumps({"tokens": out[0, ids.shape[1]:].tolist()}))
"""


def timed(command: list[str]) -> tuple[dict, float, int]:
    """Run a command; its last line of output as JSON, seconds, and peak RSS of it in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    return json.loads(output.splitlines()[-1]), time.perf_counter() - start, usage.ru_maxrss * 1024


def main() -> int:
    """Run every model and say whether all tokens were equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--target", default="cpu")
    args = parser.parse_args()
    failed = 0
    for model in args.models:
        infer = [sys.executable, "-m", "qeff", "infer", "--model-name", model, "--json", "--quiet"]
        infer += ["--prompt", PROMPT, "--generation-len", str(args.new_tokens)]
        infer += ["--target", args.target, "--precision", "fp32"]
        first, first_s, first_rss = timed(infer)
        again, again_s, again_rss = timed(infer)
        ours = first["results"][0]
        prompt = json.dumps(ours["prompt_token_ids"])
        peer, peer_s, peer_rss = timed(
            [sys.executable, "-c", PEER, model, prompt, str(args.new_tokens)]
        )
        same = ours["token_ids"] == peer["tokens"] == again["results"][0]["token_ids"]
        failed += not same
        print(f"{Path(model).name}")
        print(f"  text      {PROMPT}{ours['text']!r}")
        print(f"  tokens    {'equal' if same else 'DIFFER'} ({len(peer['tokens'])} greedy tokens)")
        for name, seconds, rss in (
            ("first", first_s, first_rss),
            ("cached", again_s, again_rss),
            ("transformers", peer_s, peer_rss),
        ):
            print(f"  {name:<13} {seconds:6.1f} s  {rss / 2**20:7.0f} MiB", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
