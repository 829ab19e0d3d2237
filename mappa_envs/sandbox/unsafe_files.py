"""Files of an `unsafe-local` workspace: read without following links, and what a run did to them.

The same records as `trail` gives, with calls that every Unix has.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from mappa_envs.sandbox.copying import read_file
from mappa_envs.sandbox.trail import MAX_DEPTH, MAX_HASHED_BYTES, MAX_PATH_BYTES, kind_by_mode, kind_of
from mappa_envs.types import Change, FileRecord

Stamp = tuple[int, int, int, int, int]
"""Inode, size, mode, time of the last write, time of the last change: tells whether a file was written."""

_HEAD_BYTES = 4096
_CHUNK_BYTES = 1 << 20


def read(root: Path, path: str, max_bytes: int) -> bytes:
    """See `Workspace.read`."""
    if "\0" in path or path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path!r} cannot be read: it is no path inside the workspace")
    return read_file(path, max_bytes, lambda: _open_beneath(root, os.fsencode(path)))


def _open_beneath(root: Path, path: bytes) -> int:
    """Open one name after the other, so that no link is followed on the way."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for name in path.split(b"/"):
        try:
            inner = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def scan(root: Path) -> dict[bytes, Stamp]:
    """All files (not folders) of a workspace, by path; contents are not read."""
    return dict(_walk(os.fsencode(root), b"", MAX_DEPTH))


def _walk(root: bytes, folder: bytes, depth: int) -> Iterator[tuple[bytes, Stamp]]:
    try:
        entries = list(os.scandir(os.path.join(root, folder)))
    except OSError:
        return  # made unreadable by its owner
    for entry in entries:
        path = os.path.join(folder, entry.name)
        if len(path) > MAX_PATH_BYTES:
            continue
        try:
            about = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # gone: by a process that escaped
        if not stat.S_ISDIR(about.st_mode):
            yield path, (about.st_ino, about.st_size, about.st_mode, about.st_mtime_ns, about.st_ctime_ns)
        elif depth:
            yield from _walk(root, path, depth - 1)


def compare(
    root: Path, before: Mapping[bytes, Stamp], after: Mapping[bytes, Stamp]
) -> tuple[FileRecord, ...]:
    """One record per file that appeared, was written or vanished between the two, by path."""
    records = []
    budget = MAX_HASHED_BYTES
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        change: Change = "deleted" if new is None else "created" if old is None else "changed"
        _, size, mode, *_ = new or old or (0,) * 5
        digest, kind = "", kind_by_mode(mode)
        if kind is None and new is None:
            kind = "other"
        elif kind is None:
            digest, kind = _look_inside(root, path, budget)
            budget -= size if digest else 0
        text = path.decode("utf-8", "backslashreplace")
        records.append(FileRecord(path=text, change=change, size=size, sha256=digest, kind=kind))
    return tuple(records)


def _look_inside(root: Path, path: bytes, budget: int) -> tuple[str, str]:
    """sha256 ("" beyond the budget or where unreadable) and kind."""
    try:
        fd = _open_beneath(root, path)
    except OSError:
        return "", "other"
    with open(fd, "rb", buffering=0) as file:
        chunk = file.read(_HEAD_BYTES) or b""
        kind = kind_of(path, chunk)
        if os.fstat(fd).st_size > budget:
            return "", kind
        digest = hashlib.sha256()
        while chunk:
            digest.update(chunk)
            chunk = file.read(_CHUNK_BYTES) or b""
    return digest.hexdigest(), kind
