"""Where built tasks and samples are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """`$MAPPA_CACHE`, or `~/.cache/mappa`."""
    return Path(os.environ.get("MAPPA_CACHE") or Path.home() / ".cache" / "mappa").expanduser()
