"""Pages of memory that a fork shares with its parent until one of the two writes to them."""

from __future__ import annotations

import ctypes
import os
import struct
from array import array
from collections.abc import Iterator
from typing import TypeAlias

from .linux import libc

Ranges: TypeAlias = "array[int]"
"""First address, number of bytes, first address, … No list: to read a list is to write to what is in it."""

_PAGE, _HUGE = 1 << 12, 2 << 20
_PIECE = 64 * _PAGE
_PRESENT, _OURS_ALONE = 1 << 63, 1 << 56  # bits of an entry of /proc/PID/pagemap
_POPULATE_WRITE, _COLLAPSE = 23, 25

_madvise = libc["madvise"]
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def own_ranges() -> Ranges:
    """The private pages that no other process shares with this one, neighbours together.

    In a fork, while its parent lives: those that it has written to.
    """
    ranges: Ranges = array("Q")
    pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    for start, end, _ in _private_mappings():
        # Piece by piece, as what this function itself writes to counts as well.
        for piece in range(start, end, _PIECE):
            entries = os.pread(pagemap, min(_PIECE, end - piece) // _PAGE * 8, piece // _PAGE * 8)
            for number, (entry,) in enumerate(struct.iter_unpack("Q", entries)):
                if not (entry & _PRESENT and entry & _OURS_ALONE):
                    continue
                address = piece + number * _PAGE
                if ranges and ranges[-2] + ranges[-1] == address:
                    ranges[-1] += _PAGE
                else:
                    ranges.extend((address, _PAGE))
    os.close(pagemap)
    return ranges


def make_own(ranges: Ranges) -> None:
    """Copy shared pages before they are written to. Kernels before 5.14 decline, which is fine."""
    for n in range(0, len(ranges), 2):
        _madvise(ranges[n], ranges[n + 1], _POPULATE_WRITE)


def collapse() -> None:
    """Huge pages for what forks inherit: each fork then copies a fraction of the page table. Kernels before
    6.1 decline, which is fine."""
    for start, end, name in _private_mappings():
        if name in ("", "[heap]"):
            for address in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
                _madvise(address, _HUGE, _COLLAPSE)


def _private_mappings() -> Iterator[tuple[int, int, str]]:
    """Start, end and name of this process's writable private mappings."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            bounds, mode, _, _, _, *name = line.split(maxsplit=5)
            if mode == "rw-p":
                start, end = (int(address, 16) for address in bounds.split("-"))
                yield start, end, name[0].strip() if name else ""
