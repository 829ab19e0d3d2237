"""Data into and out of descriptors: a new workspace's files, the code of a run, a file that is read."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from mappa_envs.errors import ConfigError, DataError, SandboxError, boundary

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What keeps a file from being opened that is nobody's fault who made it."""


def relative_path(name: str) -> str:
    """The name of a file of a new workspace, in its plain form. Raises `ConfigError` for one outside."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
        raise ConfigError(f"files: {name!r} is no relative path inside the workspace")
    return path.as_posix()


def copy_all(contents: list[Path | bytes], fds: list[int]) -> None:
    """Write each content to its descriptor and close it."""
    try:
        for content, fd in zip(contents, fds, strict=True):
            if isinstance(content, bytes):
                with boundary(DataError, "copying into the workspace (see Limits.workspace_mb)", OSError):
                    _copy_bytes(content, fd)
            else:
                with boundary(DataError, f"copying {content} (see Limits.workspace_mb)", OSError):
                    _copy_file(content, fd)
    finally:
        for fd in fds:
            os.close(fd)


def _copy_bytes(content: bytes, fd: int) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def _copy_file(source: Path, fd: int) -> None:
    with source.open("rb") as file:
        while os.sendfile(fd, file.fileno(), None, 1 << 24):
            pass


@contextlib.contextmanager
def memory_file(data: bytes) -> Iterator[int]:
    """A descriptor from which `data` can be read, closed afterwards."""
    fd = os.memfd_create("code")
    try:
        _copy_bytes(data, fd)
        yield fd
    finally:
        os.close(fd)


def read_file(path: str, max_bytes: int, open_it: Callable[[], int]) -> bytes:
    """What `Workspace.read` promises; `open_it` opens the path without following a link."""
    try:
        fd = open_it()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise FileNotFoundError(errno.ENOENT, "no such file in the workspace", path) from None
        if error.errno in SHORTAGES:
            raise SandboxError(f"reading {path!r}: {os.strerror(error.errno or 0)}") from None
        raise ValueError(f"{path!r} cannot be read: {os.strerror(error.errno or 0)}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path!r} is not a regular file")
        if found.st_size <= max_bytes:
            with open(fd, "rb", closefd=False) as file:
                data = file.read(max_bytes + 1)
            if len(data) <= max_bytes:
                return data
        raise ValueError(f"{path!r} is larger than {max_bytes} bytes")
    finally:
        os.close(fd)
