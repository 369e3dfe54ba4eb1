"""Where a checkpoint is: which folder or file, of which kind, and which files decide its content.

``locate`` turns what a user wrote (a folder, a ``.gguf`` file, a hub id or nothing) into a
``Location``. It reads no tensor and no header; only downloads, when they are needed, take time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from qeff.core.errors import SourceError
from qeff.core.progress import Progress, silent
from qeff.sources import fingerprint
from qeff.sources.shards import WEIGHTS_FILE, WEIGHTS_INDEX, shard_names

SAFETENSORS = "safetensors"
GGUF = "gguf"
RANDOM = "random weights"  # of a config alone
CONFIG = "config.json"

# Besides the weights, these decide what a checkpoint means.
_TEXT_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken"})
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


@dataclass(frozen=True, slots=True)
class Location:
    """A checkpoint on this machine that has been found but not opened."""

    name: str
    kind: str
    path: Path  # the folder, or the GGUF file
    files: tuple[Path, ...]  # what decides the content, in a fixed order
    trust_remote_code: bool = False
    has_heads: bool = False  # whether the heads that guess ahead belong to it

    @property
    def folder(self) -> Path | None:
        """The folder of a safetensors checkpoint."""
        return self.path if self.kind == SAFETENSORS else None

    @property
    def gguf_file(self) -> Path | None:
        """The file of a GGUF checkpoint."""
        return self.path if self.kind == GGUF else None

    def content_hash(self) -> str:
        """SHA-256 over every byte that decides the content; remembered until a file changes."""
        named = {_role(self, path): path for path in self.files}
        return fingerprint.hash_files(named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a checkpoint may be fetched, the same for every way in."""

    revision: str | None = None
    cache_dir: str | Path | None = None
    token: str | bool | None = None
    trust_remote_code: bool = False
    progress: Progress = silent


def locate(
    ref: str | Path | None,
    *,
    revision: str | None = None,
    cache_dir: str | Path | None = None,
    token: str | bool | None = None,
    trust_remote_code: bool = False,
    progress: Progress = silent,
) -> Location:
    """Find the checkpoint that ``ref`` names, downloading it when it is not on this machine."""
    access = Access(
        revision=revision,
        cache_dir=cache_dir,
        token=token,
        trust_remote_code=trust_remote_code,
        progress=progress,
    )
    if ref is None:
        from qeff.sources.default_model import locate_default

        return locate_default(access)
    text = str(ref).strip()
    if not text:
        raise SourceError("the model name is empty", "leave it out to use the built-in model")
    path = Path(text).expanduser()
    if path.exists():
        return locate_path(path, trust_remote_code=trust_remote_code)
    if isinstance(ref, Path) or _looks_like_path(text):
        raise SourceError(
            f"there is no checkpoint at {text}",
            "name an existing folder or .gguf file, a hub id such as org/name, or nothing",
        )
    from qeff.sources.hub import fetch_snapshot

    folder = fetch_snapshot(text, access)
    name = text.rsplit("/", 1)[-1]
    return _locate_folder(folder, name, trust_remote_code)


def locate_path(
    path: Path, *, name: str | None = None, trust_remote_code: bool = False
) -> Location:
    """The checkpoint in an existing folder or file."""
    path = path.absolute()
    if path.is_dir():
        return _locate_folder(path, name or path.resolve().name, trust_remote_code)
    if path.suffix.lower() == ".gguf":
        return Location(name or path.stem, GGUF, path, (path,), trust_remote_code)
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise _pickle_error(path)
    if path.suffix == ".safetensors":
        raise SourceError(
            f"{path} is a weights file, and its config is needed too",
            f"name the folder that holds it and config.json: {path.parent}",
        )
    raise SourceError(
        f"{path} is neither a folder nor a .gguf file", "name a checkpoint folder or a .gguf file"
    )


def locate_dummy(ref: str | Path | None, *, trust_remote_code: bool = False) -> Location:
    """The config in a folder, whose weights will be random; other weights there do not count."""
    if ref is None:
        raise SourceError(
            "random weights need a config",
            f"name a folder with a {CONFIG}: --model-name FOLDER",
        )
    folder = Path(ref).expanduser().absolute()
    folder = folder.parent if folder.name == CONFIG else folder
    if not (folder / CONFIG).is_file():
        raise SourceError(
            f"there is no {CONFIG} in {folder}",
            "random weights are made of a local folder's config",
        )
    files = sorted(path for path in folder.iterdir() if path.is_file())
    texts = (path for path in files if path.suffix in _TEXT_SUFFIXES)
    kept = tuple(path for path in texts if path.name != WEIGHTS_INDEX)
    name = f"{folder.resolve().name}-random"
    return Location(name, RANDOM, folder, kept, trust_remote_code)


def _looks_like_path(text: str) -> bool:
    return (
        text[0] in "./~\\"
        or "\\" in text
        or text.lower().endswith((".gguf", ".safetensors"))
        or _HUB_ID.fullmatch(text) is None
    )


def _locate_folder(folder: Path, name: str, trust_remote_code: bool) -> Location:
    entries = sorted(path for path in folder.iterdir() if path.is_file())
    names = {path.name for path in entries}
    if WEIGHTS_FILE in names or WEIGHTS_INDEX in names:
        weights = [folder / shard for shard in shard_names(folder)]
        suffixes = _TEXT_SUFFIXES | ({".py"} if trust_remote_code else set())
        texts = [path for path in entries if path.suffix in suffixes]
        return Location(name, SAFETENSORS, folder, (*weights, *texts), trust_remote_code)
    ggufs = [path for path in entries if path.suffix.lower() == ".gguf"]
    if len(ggufs) == 1:
        return Location(name, GGUF, ggufs[0], (ggufs[0],), trust_remote_code)
    raise _no_weights_error(folder, entries, ggufs)


def _no_weights_error(folder: Path, entries: list[Path], ggufs: list[Path]) -> SourceError:
    if ggufs:
        listed = ", ".join(path.name for path in ggufs[:5])
        return SourceError(f"{folder} holds {len(ggufs)} GGUF files", f"name one of them: {listed}")
    if any(path.name.endswith(".safetensors") for path in entries):
        return SourceError(
            f"{folder} has safetensors files, but neither {WEIGHTS_FILE} nor {WEIGHTS_INDEX}",
            "save the whole model with save_pretrained; adapters alone are not a checkpoint",
        )
    pickles = [path for path in entries if path.suffix.lower() in _PICKLE_SUFFIXES]
    if pickles:
        return _pickle_error(pickles[0])
    return SourceError(
        f"{folder} holds no weights", f"a checkpoint folder has config.json and {WEIGHTS_FILE}"
    )


def _pickle_error(path: Path) -> SourceError:
    return SourceError(
        f"{path} is a pickle file, which can run any code when it is opened",
        "convert it to safetensors: load it where you trust it and call "
        "save_pretrained(folder, safe_serialization=True)",
    )


def _role(location: Location, path: Path) -> str:
    """The name under which a file is hashed: a moved checkpoint keeps its hash."""
    if location.kind == GGUF:
        return "model.gguf"
    name = path.relative_to(location.path).as_posix()
    return f"{RANDOM}/{name}" if location.kind == RANDOM else name
