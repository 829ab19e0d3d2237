"""Models that were made on this machine, kept for the next run. Importing this loads no torch."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mappa_train.files import disk_errors, file_sha256

STALE_S = 86_400.0
_WEIGHTS, _FACTS = "model.safetensors", "source.json"


def cache_folder() -> Path:
    """Where they are kept: `$MAPPA_CACHE/models` or `~/.cache/mappa/models`."""
    root = Path(os.environ.get("MAPPA_CACHE") or Path.home() / ".cache" / "mappa").expanduser()
    return root / "models"


def kept_sha256(folder: Path) -> str | None:
    """The digest of the weights of a model that `into_cache` has kept; None unless it is whole."""
    try:
        facts = json.loads((folder / _FACTS).read_text())
        is_whole = (folder / _WEIGHTS).stat().st_size == facts["bytes"]
        return str(facts["sha256"]) if is_whole else None
    except (OSError, ValueError, KeyError):
        return None


@contextlib.contextmanager
def into_cache(folder: Path) -> Iterator[Path]:
    """A scratch folder, whose `model` is kept as `folder` where the block ends well.

    Raises `UnavailableError` where there is no room for it.
    """
    root = folder.parent
    with disk_errors(root, "free some space or set MAPPA_CACHE", "set MAPPA_CACHE to a folder of yours"):
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=root, ignore_cleanup_errors=True) as scratch:
            yield Path(scratch)
            made = Path(scratch) / "model"
            weights = made / _WEIGHTS
            weights.chmod(0o644)  # safetensors writes 0600, and a cache may be shared
            facts = {"sha256": file_sha256(weights), "bytes": weights.stat().st_size}
            (made / _FACTS).write_text(json.dumps(facts, indent=1) + "\n")
            _move_into_place(made, folder)


def _sweep(root: Path) -> None:
    """Remove what killed processes left behind."""
    for scratch in root.glob(".tmp-*"):
        with contextlib.suppress(OSError):
            if time.time() - scratch.stat().st_mtime > STALE_S:
                shutil.rmtree(scratch)


def _move_into_place(made: Path, folder: Path) -> None:
    """Rename; where another process was first, keep its copy."""
    if folder.exists() and kept_sha256(folder) is None:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        made.rename(folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
