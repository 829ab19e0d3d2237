"""Writing files so that a crash, a full disk or a second process leaves nothing half done."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mappa_envs.errors import ConfigError, MappaError, UnavailableError

_FORBIDDEN = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST)
"""The last two: a file stands where a folder is to be."""


def user_path(text: str, flag: str = "") -> Path:
    """A path that the user gave, with `~` for the home; there need be nothing.

    Raises `ConfigError` for one that cannot be, such as a name that is too long, or the home of nobody.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else first_line(error)
        raise ConfigError(f"{flag} {text[:80]}: cannot be a path ({why}); give another".lstrip()) from None
    return path


def file_sha256(path: Path) -> str:
    """The digest of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that replaces `path` for good when the block ends well, and leaves it alone otherwise."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        sync_folder(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file: readers see the old or the new one."""
    with atomic_file(path) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Make what is in a folder last: new names, renames and deletions, a power cut notwithstanding."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error, of Python or of a library in Rust, says that the disk or the quota is full."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left" in str(error) or "Disk quota exceeded" in str(error)


def disk_fault(error: BaseException) -> str | None:
    """What is wrong with a disk, and what to do, where an error says so that nobody has explained yet."""
    if is_disk_full(error):
        return f"the disk is full ({first_line(error)}); free some space"
    if not isinstance(error, OSError) or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return None
    if not isinstance(error.filename, str | bytes):  # of no file
        return None
    return f"{os.fsdecode(error.filename)}: {error.strerror}; check the permissions"


@contextlib.contextmanager
def disk_errors(folder: Path, full: str, forbidden: str) -> Iterator[None]:
    """A full or forbidden disk under `folder` as `UnavailableError`; the texts say what to do then."""
    try:
        yield
    except MappaError:
        raise
    except Exception as error:
        if is_disk_full(error) or _hides_full_disk(error, folder):
            raise UnavailableError(f"{folder}: the disk is full ({first_line(error)}); {full}") from error
        if isinstance(error, OSError) and error.errno in _FORBIDDEN:
            raise UnavailableError(f"{folder}: cannot be written ({error.strerror}); {forbidden}") from error
        raise


def first_line(error: BaseException) -> str:
    """An error's message as one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _hides_full_disk(error: Exception, folder: Path) -> bool:
    """torch reports a failed write without its cause, in changing words: look whether the disk is full."""
    if not isinstance(error, RuntimeError):
        return False
    place = next(item for item in (folder, *folder.absolute().parents) if item.exists())
    return shutil.disk_usage(place).free < 1_000_000
