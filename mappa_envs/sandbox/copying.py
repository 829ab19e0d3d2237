"""Data into descriptors: the files of a new workspace, and the code of a run."""

from __future__ import annotations

import os
from pathlib import Path

from mappa_envs.errors import DataError, boundary


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


def memory_file(data: bytes) -> int:
    """A descriptor from which `data` can be read."""
    fd = os.memfd_create("code")
    _copy_bytes(data, fd)
    return fd
