"""What objects of an agent's pickle may look like inside. For `safe_pickle`; runs inside the sandbox only."""

from __future__ import annotations

import re
from typing import Any

METHOD_NAMES = re.compile(r"_?(stack|response|chain)_method_?")
METHODS = frozenset(
    {"auto", "predict", "predict_proba", "predict_log_proba", "decision_function", "transform"}
)
MANAGERS = ("BlockManager", "SingleBlockManager")
NUMBERS = (bool, int, float, object)
ALIGNED = 0x80
"""The flag of a dtype that says nothing about its content."""


class Refused(Exception):
    """The pickle asks for a name that is not on the list."""


class Fault(Exception):
    """The artifact cannot be used; the message says why."""


def check_dtype(dtype: Any) -> None:
    """A dtype that lies about where its objects are makes numpy take bytes for pointers."""
    import numpy as np

    honest: Any = dtype
    if dtype.subdtype is not None:
        check_dtype(dtype.base)
        plain: Any = (dtype.base, dtype.shape)
        sound = dtype == np.dtype(plain) and not dtype.hasobject
    elif dtype.names is not None:
        parts = [dtype.fields[name] for name in dtype.names]
        for part in parts:
            check_dtype(part[0])
        formats, offsets = [part[0] for part in parts], [part[1] for part in parts]
        fields: Any = {"names": dtype.names, "formats": formats, "offsets": offsets}
        fields["itemsize"] = dtype.itemsize
        honest = np.dtype(fields)
        sound = not honest.hasobject and dtype.flags & ~ALIGNED == honest.flags & ~ALIGNED
    else:
        if dtype.kind != "T":
            honest = np.dtype(dtype.str)
        sound = dtype.flags == honest.flags and dtype.itemsize == honest.itemsize
    if not sound:
        raise Refused("a broken dtype")


def copy_state(state: Any) -> Any:
    """Nobody else holds the dicts that become attributes; checked before anything can look at them."""
    if isinstance(state, dict):
        for key in state:
            _check_key(key)
        return dict(state)
    if type(state) is tuple:
        return tuple(copy_state(part) if isinstance(part, dict) else part for part in state)
    return state


def _check_key(key: Any) -> None:
    """numpy, for one, reads memory where an object's `__array_interface__` says."""
    if isinstance(key, str) and key.startswith("__") and key.endswith("__"):
        raise Refused(f"an attribute {key[:40]}")


def check_attributes(owner: Any) -> None:
    """Refuse what would make the object act otherwise than its class does."""
    import numpy as np
    import pandas as pd

    attributes, kind = dict(vars(owner)), type(owner)
    if isinstance(owner, np.ndarray):
        return
    if any(callable(getattr(kind, key, None)) for key in attributes if isinstance(key, str)):
        raise Refused(f"a {kind.__name__} with a method replaced")
    tables = isinstance(owner, (pd.DataFrame, pd.Series)) and "_mgr" in attributes
    if tables and type(attributes["_mgr"]).__name__ not in MANAGERS:
        raise Refused(f"a {kind.__name__} without data")
    if isinstance(owner, dict):
        attributes.update(owner)
    for key, value in attributes.items():
        _check_key(key)
        # A class where a function is expected is a call of its constructor.
        if isinstance(value, type) and value not in NUMBERS and not issubclass(value, np.generic):
            raise Refused(f"the class {value.__name__} as an attribute")
        # scikit-learn calls what these name, of objects and with arguments that the pickle chose.
        if isinstance(key, str) and METHOD_NAMES.fullmatch(key):
            names = value if isinstance(value, (list, tuple)) else [value]
            if not all(isinstance(name, str) and name in METHODS for name in names):
                raise Refused(f"a {kind.__name__} with an odd {key}")
