"""The manifest of a folder of weights: which files belong to it, and whether they are intact."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappa_envs.errors import DataError
from mappa_train.files import file_sha256, sync_folder, write_atomically

MANIFEST = "manifest.json"


def remove(item: Path) -> None:
    """Delete a file, a link or a folder, its manifest first; nothing there is fine."""
    if item.is_dir() and not item.is_symlink():
        if (item / MANIFEST).is_file():
            (item / MANIFEST).unlink()
            sync_folder(item)
        shutil.rmtree(item)
    else:
        item.unlink(missing_ok=True)


def verify_files(folder: Path, advice: str) -> list[str]:
    """The agents of a folder with a manifest. Raises `DataError`, with `advice`, if a file is damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        agents, files = [*map(_text, manifest["agents"])], dict(manifest["files"])
        bad = next((name for name, facts in files.items() if not _is_intact(folder / name, facts)), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{folder / MANIFEST}: damaged or missing ({error}); {advice}") from error
    if bad is not None:
        raise DataError(f"{folder / bad}: damaged or missing; {advice}")
    return agents


def _text(name: Any) -> str:
    if not isinstance(name, str) or "/" in name or name in ("", ".", ".."):  # it becomes the name of a folder
        raise TypeError(f"{name!r} is no name")
    return name


def _is_intact(file: Path, facts: Mapping[str, Any]) -> bool:
    size, digest = facts["bytes"], facts["sha256"]
    return file.is_file() and file.stat().st_size == size and file_sha256(file) == digest


def write_manifest(folder: Path, step: int, agents: list[str]) -> None:
    """What `verify_files` checks: size and digest of every file in the folder, made to last."""
    files = {}
    for path in sorted(item for item in folder.rglob("*") if item.is_file()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        name = path.relative_to(folder).as_posix()
        files[name] = {"sha256": file_sha256(path), "bytes": path.stat().st_size}
    for inner in (item for item in folder.rglob("*") if item.is_dir()):
        sync_folder(inner)
    text = json.dumps({"step": step, "agents": agents, "files": files}, indent=1) + "\n"
    write_atomically(folder / MANIFEST, text.encode())
