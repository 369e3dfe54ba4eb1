"""A folder that lies is refused before any kernel runs; whatever is accepted runs without harm.

The engine is opened directly, without the checks that the container reader and ``validate`` make
before it, since C and C++ users have only its own.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from native_folder import open_folder
from tiny_decoder import write_decoder

from qeff.core.errors import ContainerError, QeffError, RequestError, ResourceError
from qeff.runtime.session import Batch, Span

NUM_MUTATIONS = 600


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoder(tmp_path_factory.mktemp("sound"), "q4_0", "fp16")


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "copy")


def batch(count: int = 3, **changes: object) -> Batch:
    index = np.arange(count)
    fields = {
        "tokens": index,
        "positions": index,
        "spans": (Span(0, count, (0,)),),
        "logit_rows": index,
    }
    return Batch(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("keep", [0, 7, 8, 100, 0.5, -1])
def test_cut_weights(folder: Path, keep: float) -> None:
    path = folder / "weights.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(ContainerError):
        open_folder(folder)


def test_missing_files(folder: Path) -> None:
    (folder / "weights.safetensors").unlink()
    with pytest.raises(ContainerError, match="cannot open"):
        open_folder(folder)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"version": 1', '"version": 2', "version"),
        ('"layout": 2', '"layout": 1', "layout"),
        ('"kv": "fp16"', '"kv": "fp99"', "fp99"),
        ('"q4_0"', '"q4_1"', "size"),
        ('"q4_0"', '"q3_x"', "dtype"),
        ('["norm",', '["normal",', "kind"),
        ('"silu"', '"salu"', None),
        ("[256, 256]", "[256, 255]", None),
        ("[8, 32]", "[8, 33]", None),
        ('"cache": 1', '"cache": 2', None),
        ('"cache": 1', '"cache": 0', "twice"),
        ('"window": 17', '"window": -17', None),
        ('"scale": ', '"scale": "x", "s": ', None),
        ("{", "", "JSON"),
    ],
)
def test_a_program_that_lies(folder: Path, old: str, new: str, said: str | None) -> None:
    path = folder / "program.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ContainerError, match=said):
        open_folder(folder)


def test_random_damage_of_the_program(folder: Path) -> None:
    """Whatever the text says, it is refused, or it runs."""
    path = folder / "program.json"
    sound = json.loads(path.read_text())
    draws = random.Random(3)
    outcomes = {"refused": 0, "ran": 0}
    for _ in range(NUM_MUTATIONS):
        damaged = copy.deepcopy(sound)
        for _ in range(draws.choice([1, 1, 1, 2, 4])):
            _damage(damaged, draws)
        path.write_text(json.dumps(damaged))
        try:
            session = open_folder(folder)
        except (ContainerError, ResourceError):
            outcomes["refused"] += 1
            continue
        try:
            session.reserve(1)
            session.step(batch(draws.choice([1, 3])))
        except QeffError:
            outcomes["refused"] += 1
        else:
            outcomes["ran"] += 1
        session.close()
    assert outcomes["refused"] > NUM_MUTATIONS // 4 and outcomes["ran"] > 0, outcomes


def _damage(data: dict, draws: random.Random) -> None:
    """Change one number, word or list somewhere in the program."""
    node: object = data[draws.choice(["values", "ops", "ops", "caches", "tokens", "logits"])]
    parent: object = data
    key: object = None
    while isinstance(node, list | dict) and len(node):
        parent = node
        key = draws.choice(list(node)) if isinstance(node, dict) else draws.randrange(len(node))
        node = node[key]  # type: ignore[index]
        if draws.random() < 0.05:
            break
    if key is None:
        return
    others = [0, 1, -1, 2, 31, 32, 33, 255, 1 << 31, (1 << 63) - 1, -(1 << 63), 1.5, "f32", "i64"]
    others += ["row", "token", "weight", "q8_0", [], {}, None, True, draws.randrange(40)]
    parent[key] = draws.choice(others)  # type: ignore[index]


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": np.array([0, 1, 96])},
        {"tokens": np.array([0, 1, -1])},
        {"tokens": np.array([0, 1, 2**62])},
        {"positions": np.array([0, 1, 3])},
        {"positions": np.array([-1, 0, 1])},
        {"positions": np.array([30, 31, 32])},
        {"spans": (Span(0, 3, (1,)),)},
        {"spans": (Span(0, 3, (-1,)),)},
        {"spans": (Span(0, 3, ()),)},
        {"spans": (Span(0, 2, (0,)),)},
        {"spans": (Span(0, 4, (0,)),)},
        {"spans": (Span(1, 3, (0,)),)},
        {"spans": ()},
        {"logit_rows": np.array([3])},
        {"logit_rows": np.array([-1])},
    ],
)
def test_requests_that_do_not_fit(sound: Path, changes: dict) -> None:
    session = open_folder(sound)
    session.reserve(1)
    with pytest.raises(RequestError):
        session.step(batch(**changes))
    before = session.step(batch()).logits
    assert np.isfinite(before).all()
    session.close()


def test_unknown_instruction_set(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_ISA", "mmx")
    with pytest.raises(ResourceError, match="scalar"):
        open_folder(sound)
