"""Loading a pickle of an agent through an allow-list. Runs inside the sandbox only, beside `inspector`.

Allowed are *classes* that hold data or fitted estimators, and the few functions that genuine pickles of
them call. Anything else (`os.system`, `pandas.read_pickle`, a class of `__main__`) is refused. What a loaded
object then says of itself is still only a claim.
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import lzma
import os
import pickle
import re
import stat
import types
import zlib
from typing import Any, ClassVar

MAX_BYTES = 256 * 2**20
PLAIN = {
    "builtins": "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple",
    "collections": "Counter OrderedDict defaultdict deque",
    "copyreg": "_reconstructor",
    "datetime": "date datetime time timedelta timezone",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "_codecs": "encode",
    "joblib.numpy_pickle": "NumpyArrayWrapper",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy._core.numeric": "_frombuffer",
    "numpy.ma.core": "_mareconstruct",
    "numpy.random._pickle": "__bit_generator_ctor __generator_ctor __randomstate_ctor",
    "pandas": "NA",
    "pandas._libs.missing": "NA",
    "pandas.core.indexes.base": "_new_Index",
    "pandas.core.indexes.datetimes": "_new_DatetimeIndex",
    "pandas.core.indexes.interval": "_new_IntervalIndex",
    "pandas.core.indexes.period": "_new_PeriodIndex",
    "pandas.core.internals.blocks": "new_block",
    "pandas.core.internals.managers": "BlockManager SingleBlockManager",
    "scipy._lib.array_api_compat.numpy._aliases": "asarray",
}
"""Names that pass by name. Functions are here only if they build an object from their arguments."""
RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}
SKLEARN = (
    "_loss calibration cluster compose covariance cross_decomposition decomposition discriminant_analysis "
    "dummy ensemble feature_extraction feature_selection frozen gaussian_process impute isotonic "
    "kernel_approximation kernel_ridge linear_model metrics mixture model_selection multiclass multioutput "
    "naive_bayes neighbors neural_network pipeline preprocessing random_projection semi_supervised svm "
    "tree"
)
"""Not among them: `datasets` (reads files), `externals`, `utils` (but for Bunch), `experimental`."""
CODE = frozenset({"function", "builtin_function_or_method", "module", "cython_function_or_method", "ufunc"})
SCORERS = re.compile(
    r"sklearn\.(metrics\._(ranking|regression|classification)|feature_selection\._univariate_selection)"
)
PANDAS_DATA = re.compile(r"pandas\._libs\.(arrays|internals|interval|sparse|missing|tslibs)\b")


class Refused(Exception):
    """The pickle asks for a name that is not on the list."""


class Fault(Exception):
    """The artifact cannot be used; the message says why."""


def _sklearn_module(module: str) -> bool:
    parts = module.split(".")
    return module == "sklearn.utils._bunch" or (
        parts[0] == "sklearn" and len(parts) > 1 and parts[1] in SKLEARN.split()
    )


def _may_import(module: str) -> bool:
    return (
        module.split(".")[0] in ("numpy", "pandas")
        or re.match(r"scipy\.special\b", module) is not None
        or _sklearn_module(module)
        or _scipy_module(module)
    )


def _scipy_module(module: str) -> bool:
    return re.match(r"scipy\.(sparse|interpolate|spatial)\b", module) is not None


def _class_passes(found: type) -> bool:
    """A class counts by where it is defined, not by the module that the pickle found it in."""
    import numpy as np
    import pandas as pd
    from pandas.api.extensions import ExtensionArray, ExtensionDtype

    home = found.__module__
    if home.startswith("numpy"):
        data = issubclass(found, (np.ndarray, np.generic, np.dtype)) and not issubclass(found, np.memmap)
        return data or home.startswith("numpy.random.")
    if home.startswith("pandas"):
        tables = (pd.DataFrame, pd.Series, pd.Index, ExtensionArray, ExtensionDtype)
        moments = (pd.Timestamp, pd.Timedelta, pd.Period, pd.Interval, pd.offsets.BaseOffset)
        return PANDAS_DATA.match(home) is not None or issubclass(found, (*tables, *moments))
    return _sklearn_module(home) or _scipy_module(home)


def _function_passes(found: Any, module: str, name: str) -> bool:
    """Constructors that Cython generates, and scikit-learn's scoring functions.

    A scorer must be a public function that its module defines: any other name there, `__builtins__` first
    of all, would hand out what can rewrite these checks.
    """
    if name == "newObj" or name.startswith("__pyx_unpickle_"):
        return (
            _sklearn_module(module) or PANDAS_DATA.match(module) is not None or module[:13] == "numpy.random."
        )
    if "unpickle" in name:
        return PANDAS_DATA.match(module) is not None
    own = isinstance(found, types.FunctionType) and found.__module__ == module
    return own and not name.startswith("_") and SCORERS.fullmatch(module) is not None


class SafeUnpickler(pickle._Unpickler):
    """The pure-Python unpickler, because only it lets BUILD be guarded; reads joblib's files too."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: io.BytesIO) -> None:
        import numpy as np

        super().__init__(file)
        self.file_handle, self.filename, self.mmap_mode, self.np = file, "", None, np

    def find_class(self, module: str, name: str) -> Any:
        asked = f"{module}.{name}"[:80]
        module = RENAMED.get(module, module)
        if module.startswith("numpy.core."):
            module = module.replace("numpy.core.", "numpy._core.", 1)
        plain = name in PLAIN.get(module, "").split()
        if not plain and ("." in name or not _may_import(module)):
            raise Refused(asked)
        found = getattr(importlib.import_module(module), name)
        if plain or isinstance(found, self.np.ufunc):
            return found
        if _class_passes(found) if isinstance(found, type) else _function_passes(found, module, name):
            return found
        raise Refused(asked)

    def load_build(self) -> None:
        """Set an object's state, but never that of a class, function or module: it would be a patch."""
        stack: list[Any] = self.stack  # type: ignore[attr-defined]
        target = stack[-2]
        if isinstance(target, type) or type(target).__name__ in CODE:
            raise Refused(f"a change to {getattr(target, '__name__', 'a module')}")
        super().load_build()  # type: ignore[misc]
        wrapper = stack[-1]
        if type(wrapper).__name__ == "NumpyArrayWrapper":
            # joblib stores an array's bytes behind its wrapper, an object array as a nested pickle.
            nested = getattr(wrapper.dtype, "hasobject", False)
            stack[-1] = SafeUnpickler(self.file_handle).load() if nested else wrapper.read(self, True)

    dispatch[pickle.BUILD[0]] = load_build


def read_bytes(path: str, limit: int = MAX_BYTES) -> bytes:
    """The content of a regular file; never follows a link, never waits for a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Fault(f"{path} is not a readable file") from error
    with open(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise Fault(f"{path} is not a regular file")
        if about.st_size > limit:
            raise Fault(f"{path} has {about.st_size} bytes, more than {limit}")
        data = file.read(limit + 1)
    if not data:
        raise Fault(f"{path} is empty")
    return data


def load(path: str) -> Any:
    """Unpickle a file of pickle, joblib or pandas. Raises `Refused` or `Fault`."""
    data = read_bytes(path)
    openers: list[tuple[bytes, Any]] = [
        (b"\x1f\x8b", gzip.decompress), (b"BZh", bz2.decompress), (b"\xfd7zXZ", lzma.decompress),
        (b"x", zlib.decompress),
    ]  # fmt: skip
    try:
        for magic, decompress in openers:
            if data.startswith(magic):
                data = decompress(data)
                break
        return SafeUnpickler(io.BytesIO(data)).load()
    except Refused as error:
        raise Refused(
            f"{path} holds {error}, which is no class of numpy, pandas, scipy or scikit-learn"
        ) from None
    except Exception as error:  # a broken pickle raises anything
        raise Fault(f"{path} cannot be unpickled ({type(error).__name__})") from error
