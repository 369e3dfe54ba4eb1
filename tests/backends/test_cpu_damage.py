"""A folder that lies is refused before any kernel runs; whatever is accepted runs without harm.

The engine is opened directly, without the checks that the container reader and ``validate`` make
before it, since C and C++ users have only its own.
"""

from __future__ import annotations

import copy
import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from native_folder import open_folder
from tiny_decoder import write_decoder

from qeff._native import library as native
from qeff._native import load
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


def test_what_is_no_file(folder: Path) -> None:
    path = folder / "program.json"
    path.unlink()
    path.mkdir()
    with pytest.raises(ContainerError, match="is no file"):
        open_folder(folder)
    path.rmdir()
    os.mkfifo(path)  # nobody writes to it, and nobody waits for it
    with pytest.raises(ContainerError, match="is no file"):
        open_folder(folder)


@pytest.mark.parametrize("num_others", [1, 100])
def test_keys_that_are_there_twice(folder: Path, num_others: int) -> None:
    path = folder / "program.json"
    others = "".join(f'"other{i}": 0, ' for i in range(num_others))
    twice = f'{{{others}"version": 1, "version": 1, '
    path.write_text(path.read_text().replace("{", twice, 1))
    with pytest.raises(ContainerError, match="'version' is there twice"):
        open_folder(folder)


def test_logits_without_elements(folder: Path) -> None:
    path = folder / "program.json"
    data = json.loads(path.read_text())
    data["values"] += [["none", "row", [0], "f32"]]
    attrs = {"axis": 0, "start": 0, "stop": 0, "step": 1}
    data["ops"] += [["slice", "none", [data["logits"]], [len(data["values"]) - 1], attrs]]
    data["logits"] = len(data["values"]) - 1
    path.write_text(json.dumps(data))
    with pytest.raises(ContainerError, match="logits"):
        open_folder(folder)


def test_caches_that_are_too_large_together(folder: Path) -> None:
    """Each of them could be had, and their sum may not even be a number."""
    path = folder / "program.json"
    data = json.loads(path.read_text())
    large = {"num_kv_heads": 64, "key_dim": 128, "value_dim": 128}
    data["caches"] += [{**data["caches"][0], **large}] * 3
    path.write_text(json.dumps(data))
    session = open_folder(folder)
    with pytest.raises(ResourceError, match="caches are too large"):
        session.reserve((1 << 46) // (session.info.block_bytes // 3))
    session.reserve(1)
    session.close()


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


def test_a_closed_session(sound: Path) -> None:
    session = open_folder(sound)
    session.reserve(1)
    session.close()
    for use in (
        lambda: session.step(batch()),
        lambda: session.reserve(1),
        lambda: session.copy_blocks([(0, 0)]),
        lambda: session.copy_rows([(0, 0)]),
    ):
        with pytest.raises(RequestError, match="no open session"):
            use()


def test_arrays_that_are_missing(sound: Path) -> None:
    session = open_folder(sound)
    session.reserve(1)
    whole = batch()
    logits = session.step(whole).logits
    library, text = load(), ctypes.create_string_buffer(200)
    for name in ("tokens", "positions", "spans", "rows"):
        kept = getattr(session._batch, name)
        setattr(session._batch, name, type(kept)())
        code = library.c.qeff_step(
            session._handle,
            session._batch,
            logits.ctypes.data_as(native.FLOATS),
            None,
            text,
            len(text),
        )
        assert code == 2 and text.value == b"an array of the step is missing", name
        setattr(session._batch, name, kept)
    code = library.c.qeff_step(session._handle, session._batch, None, None, text, len(text))
    assert code == 2 and text.value == b"an array of the step is missing"
    code = ctypes.c_int()
    assert not library.c.qeff_open(None, None, ctypes.byref(code), text, len(text))
    assert code.value == 2
    assert session.step(whole).logits.tobytes() == logits.tobytes()
    session.close()


def run_beside(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, with a folder as its argument."""
    return subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_more_threads_than_the_system_gives(sound: Path) -> None:
    """An error, not the end of the process; in a process whose memory has an end."""
    script = """
import resource, sys
from pathlib import Path
from native_folder import open_folder
from qeff.core.errors import ResourceError

resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    open_folder(Path(sys.argv[1]), threads=1024)
except ResourceError as error:
    print(error.what)
open_folder(Path(sys.argv[1]), threads=2).close()
"""
    done = run_beside(script, sound)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the system gives no more than")


def test_a_forked_process(sound: Path) -> None:
    """Threads do not come along with fork: the session is refused there and closes without them."""
    script = """
import os, signal, sys
from pathlib import Path
from native_folder import one_span, open_folder
from qeff.core.errors import RequestError

session = open_folder(Path(sys.argv[1]), threads=2)
session.reserve(1)
session.step(one_span(3))
child = os.fork()
if child == 0:
    signal.alarm(30)  # the end of it where it would wait for ever
    try:
        session.step(one_span(3))
    except RequestError as error:
        print(error.what, flush=True)
    session.close()
    os._exit(0)
os.waitpid(child, 0)
session.step(one_span(3))
session.close()
"""
    done = run_beside(script, sound)
    assert done.returncode == 0, done.stderr
    assert "forked" in done.stdout


def test_unknown_instruction_set(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QEFF_ISA", "mmx")
    with pytest.raises(ResourceError, match="scalar"):
        open_folder(sound)
