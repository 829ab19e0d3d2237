"""The offline base of the Docker sandbox's image: this machine's interpreter and packages as a tar stream."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Iterator
from fnmatch import fnmatch

from mappa_envs.sandbox.rootfs import ENVIRONMENT, Rootfs

ENV_CHANGES = [f"ENV {name}={ENVIRONMENT[name]}" for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")]
"""What the image has to say about itself, since everything lies at places of our own."""
_CHUNK_BYTES = 1 << 20
_NOT_NEEDED = ("/opt/bin/init", "/opt/sandbox/inside")
"""Of the plan: Docker has a first process of its own, and the worker's code is sent in."""
_LEFT_OUT = ("test", "ensurepip", "idlelib", "config-*")
"""Of the standard library: no agent needs them, and they are as large as the rest."""


def stream_base(plan: Rootfs) -> Iterator[bytes]:
    """The plan's files as an uncompressed tar, in pieces of about a megabyte, for `docker import`.

    Nothing is written to disk. Everything is root's and readable by all; links stay links.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|") as tar:
        known: set[str] = set()
        for source, target in _files(plan):
            _add_folder(tar, os.path.dirname(target), known)
            _add(tar, source, target)
            if buffer.tell() >= _CHUNK_BYTES:
                yield _take(buffer)
        for mask in plan.masks:
            _add_folder(tar, mask, known)
        python = next(target for _, target in plan.binds if target.startswith("/opt/python/bin/"))
        link = tarfile.TarInfo("opt/python/bin/python3")
        link.type, link.linkname = tarfile.SYMTYPE, os.path.basename(python)
        tar.addfile(link)
    yield _take(buffer)


def _take(buffer: io.BytesIO) -> bytes:
    data = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return data


def _add_folder(tar: tarfile.TarFile, path: str, known: set[str]) -> None:
    """And those around it, each once."""
    if path != "/" and path not in known:
        _add_folder(tar, os.path.dirname(path), known)
        known.add(path)
        folder = tarfile.TarInfo(path.lstrip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)


def _add(tar: tarfile.TarFile, source: str, target: str) -> None:
    info = tar.gettarinfo(source, target)
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    # Whole seconds are all that byte code is checked against; fractions cost a header a file.
    info.mtime = int(info.mtime)
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    if info.isreg():
        with open(source, "rb") as file:
            tar.addfile(info, file)
    elif info.issym() or info.islnk():
        tar.addfile(info)


def _files(plan: Rootfs) -> Iterator[tuple[str, str]]:
    """Host path and path inside of every file and link."""
    for source, target in plan.binds:
        if target in _NOT_NEEDED:
            continue
        if not os.path.isdir(source):
            yield source, target
            continue
        is_stdlib = target.startswith("/opt/python/")
        for root, folders, names in os.walk(source):
            inside = target if root == source else f"{target}/{os.path.relpath(root, source)}"
            folders[:] = [
                name
                for name in folders
                if f"{inside}/{name}" not in plan.masks
                and not (is_stdlib and root == source and any(fnmatch(name, out) for out in _LEFT_OUT))
            ]
            links = [name for name in folders if os.path.islink(os.path.join(root, name))]
            for name in [*links, *names]:
                if not name.endswith(".pyc") or name.endswith(f".{sys.implementation.cache_tag}.pyc"):
                    yield os.path.join(root, name), f"{inside}/{name}"
