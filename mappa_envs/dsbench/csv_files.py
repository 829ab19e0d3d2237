"""Reading a task's own tables row by row: whatever their size, a bounded part is in memory.

Tables must be UTF-8 text (a byte order mark is skipped) with commas, one header line and rows of one length;
line ends may be of any kind. All else raises `DataError` with the file, the line and what to do.
"""

from __future__ import annotations

import codecs
import csv
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from mappa_envs.errors import DataError

SAMPLE_ROWS = 1000
"""Column types and gaps in a prompt come from this many rows of train.csv …"""
SAMPLE_CHARS = 4 * 2**20
"""… or fewer, where they are longer than this together."""
LONGEST_LINE = 2**22
"""In characters: a longer line is no table, and would be read into memory whole."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """What the first rows of a table say about one column."""

    name: str
    is_number: bool
    has_gaps: bool


def read_header(path: Path) -> list[str]:
    """The column names of a table. Raises `DataError` if there are none, or one stands twice."""
    header = next(_rows(path), [])
    names = [name.strip() for name in header]
    if not any(names):
        raise DataError(f"{path}: is empty; it needs a header line with the column names")
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise DataError(f"{path}: column {twice[0]!r} stands twice in the header; rename or remove one")
    return names


def padded_names(path: Path) -> list[str]:
    """The column names with blanks around them, as in `id, price`: to pandas they are a part of the name."""
    return [name for name in next(_rows(path), []) if name != name.strip() != ""]


def read_columns(path: Path) -> list[Column]:
    """The columns of a table, judged by its first `SAMPLE_ROWS` rows."""
    header = read_header(path)
    rows = list(itertools.islice(_rows(path, SAMPLE_CHARS), 1, SAMPLE_ROWS + 1))
    columns = []
    for index, name in enumerate(header):
        cells = [row[index].strip() if index < len(row) else "" for row in rows]
        filled = [cell for cell in cells if cell and cell.lower() not in ("nan", "na")]
        columns.append(
            Column(name=name, is_number=all(map(is_number, filled)), has_gaps=len(filled) < len(cells))
        )
    return columns


def read_cells(path: Path, names: list[str]) -> Iterator[list[str]]:
    """The cells of the named columns, row by row, as written. Raises `DataError` on the way."""
    header = read_header(path)
    where = []
    for name in names:
        if name not in header:
            have = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
            raise DataError(f"{path}: no column {name!r} (it has: {have})")
        where.append(header.index(name))
    rows = enumerate(_rows(path))
    next(rows)
    for number, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"{path}: row {number} below the header has {len(row)} fields, not {len(header)}; "
                "quote cells that contain commas or line ends"
            )
        yield [row[index] for index in where]


def not_utf8(path: Path, error: UnicodeDecodeError) -> DataError:
    """What to raise for a file in another encoding."""
    is_utf16 = error.start == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    known = (
        "it looks like UTF-16, so by: iconv -f utf-16" if is_utf16 else "if it is Latin-1 by: iconv -f latin1"
    )
    byte = f"byte {error.object[error.start]:#x}"
    return DataError(f"{path}: is not UTF-8 text ({error.reason}, {byte}); convert it, {known} -t utf-8")


def is_number(cell: str) -> bool:
    """Whether the cell is a number, be it NaN or infinite. Only Python reads 1_000 as one."""
    if "_" in cell or not cell.isascii():
        return False
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _rows(path: Path, max_chars: int | None = None) -> Iterator[list[str]]:
    """The rows that are not blank; at most `max_chars` characters of them, but one at least."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(_lines(path, file, max_chars))
            for row in reader:
                if len(row) > 1 or (row and row[0].strip()):
                    yield row
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV text: {error}") from error


def _lines(path: Path, file: TextIO, max_chars: int | None) -> Iterator[str]:
    seen = 0
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE and not line.endswith(("\n", "\r")):
            raise DataError(f"{path}: has a line of more than {LONGEST_LINE} characters; it is no CSV table")
        if "\0" in line:
            raise DataError(f"{path}: has binary content; write it again as CSV text")
        seen += len(line)
        if max_chars is not None and seen > max_chars and seen > len(line):
            return
        yield line
