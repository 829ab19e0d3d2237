"""Which shared libraries a program or extension module needs, read from the files themselves."""

from __future__ import annotations

import mmap
import os
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_NEEDED, _STRING_TABLE = 1, 5


def read_needs(path: Path) -> tuple[list[str], str | None]:
    """Names of the libraries that an ELF file asks for, and the loader that it names.

    Only 64-bit little-endian files; anything else needs nothing: `([], None)`.
    """
    with path.open("rb") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            return [], None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _parse(data)
            except (struct.error, ValueError):
                return [], None


def _parse(data: mmap.mmap) -> tuple[list[str], str | None]:
    (table,) = struct.unpack_from("<Q", data, 32)
    entry_size, num_entries = struct.unpack_from("<HH", data, 54)
    segments: list[tuple[int, int, int]] = []
    dynamic: tuple[int, int] | None = None
    interpreter = None
    for n in range(num_entries):
        kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, table + n * entry_size)
        if kind == _LOAD:
            segments.append((address, size, offset))
        elif kind == _DYNAMIC:
            dynamic = (offset, size)
        elif kind == _INTERPRETER:
            interpreter = data[offset : offset + size].rstrip(b"\0").decode()
    if dynamic is None:
        return [], interpreter
    offset, size = dynamic
    entries = [struct.unpack_from("<QQ", data, at) for at in range(offset, offset + size, 16)]
    strings = next(value for tag, value in entries if tag == _STRING_TABLE)
    base = next(o + strings - a for a, s, o in segments if a <= strings < a + s)
    return [_text(data, base + value) for tag, value in entries if tag == _NEEDED], interpreter


def _text(data: mmap.mmap, start: int) -> str:
    return data[start : data.find(b"\0", start)].decode()


def system_libraries(files: Iterable[Path], provided: set[str]) -> dict[str, Path]:
    """The libraries outside `provided` that `files` need, directly or not: name → real path.

    What cannot be found is left out: an optional module that lacks its library fails to import
    here as it does on the host.
    """
    folders = list(_library_folders())
    found: dict[str, Path] = {}
    waiting = [name for file in files for name in read_needs(file)[0]]
    waiting.append("libgcc_s.so.1")  # glibc loads it by name when a thread ends
    seen = set(provided)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None:
            found[name] = path.resolve()
            waiting += read_needs(found[name])[0]
    return found


def _library_folders() -> Iterator[Path]:
    yield Path(sys.base_prefix) / "lib"
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield Path(folder)
    multiarch = sysconfig.get_config_var("MULTIARCH")
    for base in ("/lib", "/usr/lib", "/usr/local/lib"):
        if multiarch:
            yield Path(base) / multiarch
    yield from map(Path, ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib64", "/usr/local/lib"))
