"""What a run did to its workspace, seen from outside by descriptor and never through a link."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mappa_envs.sandbox.copying import SHORTAGES
from mappa_envs.sandbox.inside import linux
from mappa_envs.types import Change, FileRecord

MAX_DEPTH = 32
"""Folders nested deeper are not looked into."""

MAX_PATH_BYTES = 512
"""What has a longer path is not recorded: agents choose the names, and every record of a run keeps them."""

MAX_HASHED_BYTES = 1 << 30
"""At one look, small files first. What comes after has no sha256: sparse files can pretend to be any size."""

_READ_BYTES = 1 << 20
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class Entry:
    """What tells whether a file was written. Times do not tell all: a mapped page can change without them."""

    inode: int
    size: int
    mode: int
    modified_ns: int
    changed_ns: int
    sha256: str = ""
    kind: str = "other"


@dataclass
class Snapshot:
    """All files (not folders) of a workspace at a moment when nothing runs in it."""

    entries: dict[bytes, Entry] = field(default_factory=dict)


def take_snapshot(root_fd: int) -> Snapshot:
    """Look at every file, and into it."""
    return look_into(root_fd, list_files(root_fd))


def list_files(root_fd: int) -> dict[bytes, Entry]:
    """All files by path, without a look into them."""
    return dict(_walk(root_fd))


def look_into(root_fd: int, files: dict[bytes, Entry]) -> Snapshot:
    """The snapshot of files that `list_files` has just found."""
    entries, budget = {}, MAX_HASHED_BYTES
    for path, entry in sorted(files.items(), key=lambda item: item[1].size):
        kind = kind_by_mode(entry.mode)
        digest = ""
        if kind is None:
            digest, kind = _look_inside(root_fd, path, entry.size <= budget)
            budget -= entry.size
        entries[path] = replace(entry, sha256=digest, kind=kind)
    return Snapshot(entries=entries)


def _walk(root_fd: int) -> Iterator[tuple[bytes, Entry]]:
    folders = [b""]
    while folders:
        folder = folders.pop()
        try:
            fd = linux.open_beneath(
                root_fd, os.fsdecode(folder or b"."), os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK
            )
        except OSError as error:
            _check_fault(error)
            continue  # made unreadable by its owner
        try:
            for name in map(os.fsencode, os.listdir(fd)):
                path = folder + b"/" + name if folder else name
                if len(path) > MAX_PATH_BYTES:
                    continue
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    if path.count(b"/") < MAX_DEPTH:
                        folders.append(path)
                    continue
                yield (
                    path,
                    Entry(found.st_ino, found.st_size, found.st_mode, found.st_mtime_ns, found.st_ctime_ns),
                )
        except OSError as error:
            _check_fault(error)
        finally:
            os.close(fd)


def _check_fault(error: OSError) -> None:
    """Raise it again where it says nothing about the file: that would seem to be deleted."""
    if error.errno in SHORTAGES:
        raise error


def compare(before: Snapshot, after: Snapshot) -> tuple[FileRecord, ...]:
    """One record per file that appeared, was written or vanished between the two, by path."""
    records = []
    for path in sorted(before.entries.keys() | after.entries.keys()):
        old, new = before.entries.get(path), after.entries.get(path)
        if old == new:
            continue
        if new is None:
            assert old is not None
            records.append(_record(path, "deleted", replace(old, sha256="")))
        else:
            records.append(_record(path, "created" if old is None else "changed", new))
    return tuple(records)


def wipe(root_fd: int) -> None:
    """Delete all that is in a folder in which nothing runs. Any depth, any permissions (as root)."""
    os.fchmod(root_fd, 0o700)
    prefix, number = os.urandom(8).hex(), 0
    while names := os.listdir(root_fd):
        for name in names:
            try:
                os.unlink(name, dir_fd=root_fd)
                continue
            except IsADirectoryError:
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root_fd)
            try:
                os.fchmod(fd, 0o700)
                for child in os.listdir(fd):
                    try:
                        os.unlink(child, dir_fd=fd)
                    except IsADirectoryError:
                        # Up to the top, so that no depth is too deep.
                        number += 1
                        os.rename(child, f"{prefix}{number}", src_dir_fd=fd, dst_dir_fd=root_fd)
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=root_fd)


def _record(path: bytes, change: Change, entry: Entry) -> FileRecord:
    name = path.decode("utf-8", "backslashreplace")
    return FileRecord(path=name, change=change, size=entry.size, sha256=entry.sha256, kind=entry.kind)


def kind_by_mode(mode: int) -> str | None:
    """None for a regular file, whose content decides."""
    if stat.S_ISREG(mode):
        return None
    return "link" if stat.S_ISLNK(mode) else "fifo" if stat.S_ISFIFO(mode) else "other"


def _look_inside(root_fd: int, path: bytes, hashed: bool) -> tuple[str, str]:
    """sha256 ("" where not `hashed` or unreadable) and kind."""
    try:
        fd = linux.open_beneath(root_fd, os.fsdecode(path), os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        _check_fault(error)
        return "", "other"
    digest = hashlib.sha256()
    with open(fd, "rb", buffering=0) as file:
        head = chunk = file.read(_HEAD_BYTES) or b""
        while chunk and hashed:
            digest.update(chunk)
            chunk = file.read(_READ_BYTES) or b""
    return digest.hexdigest() if hashed else "", kind_of(path, head)


def kind_of(path: bytes, head: bytes) -> str:
    """One of the kinds of `FileRecord`, by content first and name second."""
    extension = os.path.splitext(path)[1].lower()
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head.startswith(b"PAR1"):
        return "parquet"
    if extension == b".joblib":
        return "joblib"
    if len(head) > 1 and head[0] == 0x80 and head[1] <= 5:
        return "pickle"
    if b"\0" in head:
        return "other"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(head) < _HEAD_BYTES or error.start < len(head) - 4:
            return "csv" if extension == b".csv" else "other"
    return {b".csv": "csv", b".json": "json"}.get(extension, "text")
