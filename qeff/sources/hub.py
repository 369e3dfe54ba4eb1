"""Fetches a checkpoint from the model hub into huggingface_hub's own cache.

The local cache is asked first, so that a second run needs no network. Then one request with a
short limit tells whether the hub answers at all, before the library's patient retries begin.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qeff.core.env import hub_is_offline, hub_timeout_seconds
from qeff.core.errors import HubUnreachable, SourceError
from qeff.core.progress import Event, Progress, log

if TYPE_CHECKING:
    from qeff.sources.location import Access

_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
# Other copies of the same weights: the publisher's own layout, other precisions, subfolders.
_IGNORED = ("*/*", "consolidated*.safetensors", "*.fp16.safetensors*", "*.bf16.safetensors*")
_HINT = "name a local folder or a .gguf file, or no model at all for the built-in one"


def fetch_snapshot(repo: str, access: Access) -> Path:
    """The folder of a hub checkpoint, downloaded unless it is in the cache."""
    cached = find_snapshot(repo, access)
    if cached is not None:
        return cached
    if hub_is_offline():
        raise HubUnreachable(
            f"{repo!r} is not in the local cache, and HF_HUB_OFFLINE forbids to download it", _HINT
        )
    _check_answer(repo, access)
    return _download(repo, access)


def find_snapshot(repo: str, access: Access) -> Path | None:
    """The folder of a hub checkpoint that is complete in the local cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo, local_files_only=True, **_arguments(access)))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise SourceError(f"{repo!r} is neither a path nor a hub id: {error}", _HINT) from error
    return folder if _is_complete(folder) else None


def _is_complete(folder: Path) -> bool:
    """Whether nothing is missing that an interrupted download would have left out."""
    from qeff.sources.shards import shard_names

    try:
        return (folder / "config.json").is_file() and bool(shard_names(folder))
    except SourceError:
        return False


def _arguments(access: Access) -> dict[str, Any]:
    code = ("*.py",) if access.trust_remote_code else ()
    return {
        "revision": access.revision,
        "cache_dir": access.cache_dir,
        "token": access.token,
        "allow_patterns": [*_PATTERNS, *code],
        "ignore_patterns": list(_IGNORED),
    }


def _check_answer(repo: str, access: Access) -> None:
    """Ask the hub for the model, and wait no longer than the limit, name look-up included."""
    from huggingface_hub import HfApi

    limit = hub_timeout_seconds()
    outcome: list[Exception | None] = []

    def ask() -> None:
        try:
            HfApi(token=access.token).model_info(repo, revision=access.revision, timeout=limit)
            outcome.append(None)
        except _network_errors() as error:  # handed to the thread that waits
            outcome.append(error)

    thread = threading.Thread(target=ask, name="hub-probe", daemon=True)
    thread.start()
    thread.join(limit)
    if not outcome:
        raise HubUnreachable(
            f"the model hub did not answer within {limit:g} seconds when asked for {repo!r}", _HINT
        )
    if outcome[0] is not None:
        raise _explain(repo, access, outcome[0])


def _download(repo: str, access: Access) -> Path:
    from huggingface_hub import snapshot_download

    log.info("downloading %s from the model hub", repo)
    try:
        folder = snapshot_download(
            repo, tqdm_class=_bar_class(access.progress), **_arguments(access)
        )
    except _network_errors() as error:
        raise _explain(repo, access, error) from error
    return Path(folder)


def _network_errors() -> tuple[type[Exception], ...]:
    from huggingface_hub import errors

    # HfHubHTTPError extends the error class of whichever HTTP library the hub client uses.
    return (*errors.HfHubHTTPError.__bases__, errors.LocalEntryNotFoundError, OSError, ValueError)


def _explain(repo: str, access: Access, error: Exception) -> SourceError:
    """What the hub, or the way to it, said, in our words."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return SourceError(
            f"{repo!r} is gated, and the token in use has no access",
            "accept its terms on the hub, then set HF_TOKEN or pass a token",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return SourceError(f"{repo!r} has no revision {access.revision!r}", "check the revision")
    if isinstance(error, errors.RepositoryNotFoundError):
        return SourceError(
            f"{repo!r} is neither a local folder nor a model on the hub",
            "check the spelling; for a private model set HF_TOKEN or pass a token",
        )
    if isinstance(error, errors.HFValidationError):
        return SourceError(f"{repo!r} is neither a path nor a hub id: {error}", _HINT)
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return HubUnreachable(f"the model hub cannot give {repo!r}: {reason[0]}", _HINT)


def _bar_class(progress: Progress) -> type:
    """A stand-in for a progress bar that tells our listener instead of drawing."""
    from huggingface_hub.utils.tqdm import tqdm

    class _Listener(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts_bytes = kwargs.get("unit") == "B"
            self._done = 0
            kwargs["disable"] = True
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            self._done += int(n or 0)
            if self._counts_bytes:
                total = int(self.total) if self.total else None
                progress(Event("download", self._done, total))
            return None

    return _Listener
