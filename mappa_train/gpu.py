"""Whether there is a GPU to compute on. Importing this loads no torch, nor does asking without a driver."""

from __future__ import annotations

import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path

_CUDA_DRIVER = "libcuda.so.1"
_ROCM_DEVICE = Path("/dev/kfd")


def has_gpu() -> bool:
    """What `torch.cuda.is_available()` says; False without torch.

    Torch takes seconds to load, so a driver is looked for first.
    """
    if find_spec("torch") is None or ("torch" not in sys.modules and not _has_driver()):
        return False
    import torch

    return torch.cuda.is_available()


def _has_driver() -> bool:
    """Torch loads the same library of the driver: where that cannot be loaded, it has no CUDA either."""
    try:
        ctypes.CDLL(_CUDA_DRIVER)
    except OSError:
        return _ROCM_DEVICE.exists()
    return True
