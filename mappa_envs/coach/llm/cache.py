"""Answers on disk by what was asked: a replay costs nothing. One file each; processes may share them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)


class AnswerCache:
    """`folder/ab/abcdef….json`. A file that cannot be read counts as missing, with a warning."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> str | None:
        """The answer, or None."""
        path = self._path(key)
        try:
            entry = json.loads(path.read_text("utf-8"))
            answer = entry["answer"]
            if entry["key"] != key or not isinstance(answer, str):
                raise ValueError("it is another's")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("%s: a damaged cache entry is ignored (%s)", path, error)
            return None
        return str(answer)

    def put(self, key: str, answer: str) -> None:
        """Keep an answer. A folder that cannot be written costs a warning, not the run."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump({"key": key, "answer": answer}, file)
                os.replace(name, path)
            finally:
                Path(name).unlink(missing_ok=True)  # there only if it could not be written or moved
        except OSError as error:
            log.warning("%s: the coach's answer could not be kept (%s)", path, error)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def cache_key(asked: Mapping[str, object]) -> str:
    """The same for the same JSON content, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
