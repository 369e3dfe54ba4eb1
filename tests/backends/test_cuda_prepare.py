"""A prepared session: no step that may come compiles a kernel, and no small one is captured."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from cuda_container import Kind, MemoryContainer  # noqa: E402
from test_cuda_steps import CPU, recorder, step_of  # noqa: E402

from qeff.backends.cuda.session import open_session, preparing  # noqa: E402
from qeff.backends.cuda.session import session as session_module  # noqa: E402
from qeff.backends.cuda.session.graphs import Graphs  # noqa: E402
from qeff.backends.cuda.session.preparing import Trial, trials  # noqa: E402
from qeff.runtime.session import GREEDY, Capabilities  # noqa: E402


def test_no_step_compiles_or_captures_anything_afterwards(tmp_path: Path) -> None:
    here = Path(__file__).parent
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "c")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(here / "cuda_dry.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("compiled ahead") == [1, 0]
    assert [one["compiled after"] for one in found.values()] == [[]] * len(found)
    assert [one["captured after"] for one in found.values()] == [0] * len(found)
    assert found["mxfp4"]["prepared"] > 20 and found["mxfp4"]["captured"] > 50


def test_the_cache_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [Trial(3, 2, 2, 128, GREEDY), Trial(2, 2, 2, 128, GREEDY)]
    monkeypatch.setattr(session_module, "trials", lambda caps: some)
    container = MemoryContainer(Kind(layers=1), tmp_path)
    session, reference = open_session(container, None, device="cpu"), container.reference()
    session._graphs = Graphs(CPU, 100, recorder())
    for one in (session, reference):
        one.reserve(4)
        one.step(step_of((2, 3), (0, 0)))
    before = session.caches[0].keys.clone()
    session.prepare()
    after = session.caches[0].keys
    assert torch.equal(after[:-1], before[:-1]) and not torch.equal(after[-1], before[-1])
    batch = step_of((1, 1), (2, 3))
    np.testing.assert_allclose(session.step(batch).logits, reference.step(batch).logits, atol=1e-4)


@pytest.mark.parametrize(("ctx_len", "most"), [(64, 1), (100, 3), (4096, 32), (131072, 600)])
def test_trials_are_steps_that_the_model_has_tables_for(ctx_len: int, most: int) -> None:
    step_tokens = min(ctx_len, 8192)
    caps = Capabilities(96, ctx_len, 64, most, step_tokens, quick_tokens=4096, chooses=True)
    for step in trials(caps):
        batch = step.batch(7)
        assert len(batch.tokens) == step.tokens <= most * step_tokens
        assert batch.positions.max() < min(ctx_len, step.longest + 1)
        assert len(batch.spans) == step.spans <= preparing.padding.row_size(most)
        assert batch.spans[-1].stop == step.tokens and len(batch.logit_rows) == step.rows
