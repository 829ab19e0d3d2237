"""Reading a submission: from an untrusted file to the cells of its columns, row by row of the answers.

Every step raises `Invalid` with one of `CODES` and a message that says what to mend. Also runs inside the
sandbox, for `inspector`: so it may import only the standard library.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CODES = (
    "no_file",
    "not_a_file",
    "too_large",
    "empty_file",
    "not_text",
    "ragged",
    "duplicate_columns",
    "missing_id_column",
    "missing_target_column",
    "no_rows",
    "blank_id",
    "duplicate_ids",
    "missing_ids",
    "unknown_ids",
    "blank_prediction",
    "not_a_label",
    "not_numeric",
    "not_finite",
    "not_probability",
    "undefined_score",
    "ok",
)

BLANKS = frozenset({"", "nan", "-nan", "+nan", "na", "n/a", "null", "none", "<na>", "nat"})
_WHOLE = re.compile(r"(-?\d+)\.0*")
_TO_CSV = "write it with DataFrame.to_csv(..., index=False)"
_END = "\0"
"""Two cells of it follow the last line: the csv module is silent about a quote that is never closed.
No submission has this character: see `decode`."""


class Invalid(Exception):
    """The submission cannot be scored; `code` is one of `CODES`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def canonical(cell: str) -> str:
    """Ids and labels compare as text, with 1.0 read as 1 and -0 as 0. `007` stays `007`."""
    text = cell.strip()
    if "." in text and (found := _WHOLE.fullmatch(text)):
        text = found[1]
    return "0" if text == "-0" else text


def content(submission: Path | bytes | None, limit: int) -> bytes:
    """The bytes of a submission; `limit` is checked before anything is read."""
    if submission is None:
        raise Invalid("no_file", "there is no submission file")
    data = submission if isinstance(submission, bytes) else _read_file(Path(submission), limit)
    if len(data) > limit:
        raise Invalid("too_large", f"the submission has more than {_mb(limit)}, the limit")
    return data


def _mb(size: int) -> str:
    return f"{size / 2**20:.3g} MB"


def _read_file(path: Path, limit: int) -> bytes:
    """At most `limit` + 1 bytes of a regular file, looked at and read through one descriptor."""
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise Invalid("no_file", f"there is no file {path.name}") from None
    except OSError as error:
        raise Invalid("not_a_file", f"{path.name} is not a readable file: {error.strerror}") from None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise Invalid("not_a_file", f"{path.name} is a folder or device, not a file")
        if about.st_size > limit:
            raise Invalid("too_large", f"{path.name} has {_mb(about.st_size)}, the limit is {_mb(limit)}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit + 1)
    except OSError as error:
        raise Invalid("not_a_file", f"{path.name} cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def decode(data: bytes) -> str:
    """The text, without a byte order mark."""
    if not data.strip():
        raise Invalid("empty_file", "the submission is empty")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid("not_text", f"not UTF-8 text (byte {error.start}): {_TO_CSV}") from None
    if _END in text:
        raise Invalid("not_text", f"zero bytes (UTF-16 or no text at all), not UTF-8 text: {_TO_CSV}")
    return text


@dataclass(frozen=True, kw_only=True)
class Table:
    """The canonical ids of all rows, the cells of each target column and the number of all columns."""

    ids: list[str]
    columns: list[list[str]]
    width: int


def parse(text: str, id_column: str, targets: Sequence[str], *, warnings: list[str], keep: int) -> Table:
    """The table of a submission: every id, but the target cells of the first `keep` rows only."""
    names = (id_column, *targets)
    reader = csv.reader(itertools.chain(io.StringIO(text, newline=""), [f"{_END},{_END}"]))
    ids: list[str] = []
    columns: list[list[str]] = [[] for _ in targets]
    try:
        rows = _rows(reader)
        header = [name.strip() for name in next(rows, [])]
        if not header:
            raise Invalid("empty_file", "the submission is empty")
        unique = len(set(header)) == len(header)
        where: list[int | None] = _find(header, names) if unique else [None for _ in names]
        for row in rows:
            if len(row) != len(header):
                raise Invalid(
                    "ragged",
                    f"line {reader.line_num} has {len(row)} fields, the header has {len(header)}: {_TO_CSV}",
                )
            if len(ids) < keep:
                for column, at in zip(columns, where[1:], strict=True):
                    column.append(row[at] if at is not None else "")
            ids.append(canonical(row[where[0]]) if where[0] is not None else "")
    except csv.Error as error:
        raise Invalid("ragged", _unreadable(reader.line_num, error)) from None
    _check_header(header, where, names, warnings)
    if not ids:
        raise Invalid("no_rows", "the submission has a header but no rows: predict every row of test.csv")
    return Table(ids=ids, columns=columns, width=len(header))


def _unreadable(line: int, error: csv.Error) -> str:
    if "field limit" in str(error):
        return (
            f"line {line} has a cell of more than {csv.field_size_limit()} characters, the limit: "
            "write the id and the predictions only, and close every quote"
        )
    return f"line {line}: {error} (an unclosed quote?): {_TO_CSV}"


def _rows(lines: Iterable[list[str]]) -> Iterator[list[str]]:
    """The rows that are not blank, up to the end mark."""
    for row in lines:
        if row and row[-1].endswith(_END):
            if row == [_END, _END]:
                return
            raise Invalid("ragged", f"a quote is never closed, in the row of {some([row[0]])}: {_TO_CSV}")
        if len(row) > 1 or (row and row[0].strip()):
            yield row


def _find(header: list[str], names: Sequence[str]) -> list[int | None]:
    """Where each column stands; the case of letters counts only if it tells two columns apart.

    A hostile header has millions of columns, so that the loops over them must be few and short.
    """
    exact = dict(zip(header, range(len(header)), strict=True))
    close: dict[str, list[int]] = {name.lower(): [] for name in names}
    if not all(name in exact for name in names):
        for at, have in enumerate(map(str.lower, header)):
            if have in close and header[at] not in names:
                close[have].append(at)

    def place(name: str) -> int | None:
        candidates = close[name.lower()]
        return exact.get(name, candidates[0] if len(candidates) == 1 else None)

    return [place(name) for name in names]


def _check_header(
    header: list[str], where: list[int | None], names: Sequence[str], warnings: list[str]
) -> None:
    if len(set(header)) < len(header):
        # Looked for only here, after the rows: a ragged table is reported as one.
        raise Invalid("duplicate_columns", f"columns appear twice: {some(_repeated(header))}; name each once")
    for number, (name, at) in enumerate(zip(names, where, strict=True)):
        if at is None:
            code = "missing_id_column" if number == 0 else "missing_target_column"
            hint = " (fields must be separated by commas)" if len(header) == 1 else ""
            raise Invalid(code, f"no column {name!r}; the columns are: {some(header, 8)}{hint}")
        if header[at] != name:
            warnings.append(f"column {some([header[at]])!r} was taken for {name!r}")
    taken = set(where)
    extra = (name for at, name in enumerate(header) if at not in taken)
    first = list(itertools.islice(extra, 4))
    if first:
        warnings.append(f"columns that are not asked for were ignored: {some(first)}")


def _repeated(names: Iterable[str]) -> list[str]:
    """The first names that appear again, each once."""
    seen: set[str] = set()
    again: dict[str, None] = {}
    for name in names:
        if name in seen:
            again[name] = None
            if len(again) == 4:
                break
        seen.add(name)
    return list(again)


def match(ids: list[str], wanted: list[str], id_column: str) -> list[int]:
    """For each wanted id the row of the submission that has it."""
    known = set(wanted)
    blank = [i for i, id_ in enumerate(ids) if id_.lower() in BLANKS and id_ not in known]
    if blank:
        where = f"the first is row {blank[0] + 1}"
        raise Invalid("blank_id", f"{len(blank)} rows have no {id_column!r}, {where}")
    row_of = {id_: row for row, id_ in enumerate(ids)}
    if len(row_of) < len(ids):
        more = f"{len(ids) - len(row_of)} rows repeat an id of column {id_column!r}"
        raise Invalid("duplicate_ids", f"{more}: {some(_repeated(ids))}; write one row for each id")
    missing = [id_ for id_ in wanted if id_ not in row_of]
    if missing:
        raise Invalid(
            "missing_ids",
            f"{len(missing)} of {len(wanted)} ids of test.csv are missing: {some(missing)} "
            f"(the submission has ids such as {some(ids)}); "
            f"predict every row of test.csv and copy its {id_column!r} unchanged",
        )
    unknown = [id_ for id_ in ids if id_ not in known]
    if unknown:
        shown = f"{len(unknown)} ids are not in test.csv: {some(unknown)}"
        raise Invalid("unknown_ids", f"{shown}; predict the rows of test.csv only")
    return [row_of[id_] for id_ in wanted]


def some(names: Sequence[str], most: int = 3) -> str:
    """The first names of a list for a message, each cut to 40 characters.

    What does not print is replaced: agents choose these names, and messages end up in terminals.
    """
    short = [name if len(name) <= 40 else name[:37] + "..." for name in names[:most]]
    short = [name or "(no name: a saved index?)" for name in short]
    shown = ", ".join(short) + (", …" if len(names) > most else "")
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in shown)
