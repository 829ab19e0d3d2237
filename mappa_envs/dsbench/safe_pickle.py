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
import math
import os
import pickle
import re
import stat
import types
import zlib
from collections import deque
from typing import Any, ClassVar

from mappa_envs.dsbench.pickle_checks import Fault, Refused, check_attributes, check_dtype, copy_state

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
    "pandas.core.indexes.timedeltas": "_new_TimedeltaIndex",
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
NO_CLASS = "no class of numpy, pandas, scipy or scikit-learn"
PANDAS_DATA = re.compile(r"pandas\._libs\.(arrays|internals|interval|sparse|missing|tslibs)\b")


def _sklearn_module(module: str) -> bool:
    parts = module.split(".")
    return module == "sklearn.utils._bunch" or (
        parts[0] == "sklearn" and len(parts) > 1 and parts[1] in SKLEARN.split()
    )


def _may_import(module: str) -> bool:
    parts = module.split(".")
    # Importing runs it.
    if any(part.startswith("__") or part in ("tests", "testing", "conftest", "f2py") for part in parts):
        return False
    return (
        parts[0] in ("numpy", "pandas")
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


def _is_cython_maker(module: str, name: str) -> bool:
    """A constructor that Cython generates."""
    if name == "newObj" or name.startswith("__pyx_unpickle_"):
        return (
            _sklearn_module(module) or PANDAS_DATA.match(module) is not None or module[:13] == "numpy.random."
        )
    return "unpickle" in name and PANDAS_DATA.match(module) is not None


def _is_scorer(found: Any, module: str, name: str) -> bool:
    """A public function that a module of scoring functions defines.

    Any other name there, `__builtins__` first of all, would hand out what can rewrite these checks.
    """
    own = isinstance(found, types.FunctionType) and found.__module__ == module
    return own and not name.startswith("_") and SCORERS.fullmatch(module) is not None


class SafeUnpickler(pickle._Unpickler):
    """The pure-Python unpickler, because only it lets each step be guarded; reads joblib's files too.

    Beyond the names: only classes and the listed functions are called, so that no object that the pickle made
    acts at loading; no attribute hides a method or tells numpy where its memory is; containers are filled,
    not others; arrays and dtypes are set once, by state that fits.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    metastack: list[list[Any]]
    memo: dict[int, Any]

    def __init__(self, file: io.BytesIO) -> None:
        import numpy as np

        super().__init__(file)
        self.file_handle, self.np = file, np
        self._makers: list[Any] = []
        self._made: list[Any] = []

    def load(self) -> Any:
        """Raises `Refused`, or whatever a broken pickle raises."""
        value = super().load()
        # Again: a list that an attribute holds may have grown since.
        for owner in self._made:
            check_attributes(owner)
        return value

    def find_class(self, module: str, name: str) -> Any:
        asked = f"{module}.{name}"[:80]
        module = RENAMED.get(module, module)
        if module.startswith("numpy.core."):
            module = module.replace("numpy.core.", "numpy._core.", 1)
        plain = name in PLAIN.get(module, "").split()
        if not plain and ("." in name or not _may_import(module)):
            raise Refused(f"{asked}, which is {NO_CLASS}")
        found = getattr(importlib.import_module(module), name)
        if isinstance(found, type):
            allowed = plain or _class_passes(found)
        elif plain or _is_cython_maker(module, name):
            allowed = True
            self._makers.append(found)
        else:
            allowed = isinstance(found, self.np.ufunc) or _is_scorer(found, module, name)
        if not allowed:
            raise Refused(f"{asked}, which is {NO_CLASS}")
        return found

    def _check_call(self, function: Any, arguments: Any) -> None:
        """Is this a call that a genuine pickle makes?"""
        name = str(getattr(function, "__name__", type(function).__name__))[:80]
        is_class = isinstance(function, type)
        if not (is_class or any(function is maker for maker in self._makers)):
            raise Refused(f"a call of {name}")
        # Its constructor takes a buffer for an array of objects.
        if is_class and issubclass(function, self.np.ndarray):
            raise Refused(f"a call of {name}")
        functions = [one for one in arguments if callable(one) and not isinstance(one, type)]
        if not all(any(one is maker for maker in self._makers) for one in functions):
            raise Refused(f"a call of {name} with a function")
        first, second = (*arguments, None, None)[:2]
        if name == "_reconstructor" and second is not object:
            raise Refused(f"a call of {name} with a base class")
        if name.startswith("_new_") and not _is_index(first):
            raise Refused(f"a call of {name} for another class")

    def load_reduce(self) -> None:
        self._check_call(self.stack[-2], self.stack[-1])
        super().load_reduce()  # type: ignore[misc]
        made = self.stack[-1]
        if isinstance(made, self.np.dtype):
            check_dtype(made)
        self._note(made)

    def load_newobj(self) -> None:
        self._check_call(self.stack[-2], self.stack[-1])
        super().load_newobj()  # type: ignore[misc]

    def load_newobj_ex(self) -> None:
        self._check_call(self.stack[-3], (*self.stack[-2], *self.stack[-1].values()))
        super().load_newobj_ex()  # type: ignore[misc]

    def _instantiate(self, function: Any, arguments: Any) -> None:
        self._check_call(function, arguments)
        super()._instantiate(function, arguments)  # type: ignore[misc]
        self._note(self.stack[-1])

    def _note(self, made: Any) -> None:
        """Check its attributes, now and at the end."""
        if hasattr(made, "__dict__") and not isinstance(made, type):
            check_attributes(made)
            self._made.append(made)

    def load_build(self) -> None:
        """Set an object's state, but never that of a class, function or module: it would be a patch."""
        state, target = self.stack[-1], self.stack[-2]
        if isinstance(target, type) or type(target).__name__ in CODE:
            raise Refused(f"a change to {getattr(target, '__name__', 'a module')}")
        if isinstance(target, self.np.dtype):
            self._build_dtype(target)
            return
        if isinstance(target, self.np.ndarray) and target.size:
            raise Refused("a change to an array, whose memory others may use")
        self.stack[-1] = copy_state(state)
        super().load_build()  # type: ignore[misc]
        if type(target).__name__ == "NumpyArrayWrapper":
            self.stack[-1] = self._read_array(target)
        else:
            self._note(target)

    def _build_dtype(self, target: Any) -> None:
        """Give the state to a copy: arrays may already use the other."""
        maker, arguments = target.__reduce__()[:2]
        fresh = maker(*arguments)
        fresh.__setstate__(self.stack.pop())
        check_dtype(fresh)
        self.stack[-1] = fresh
        for key, value in self.memo.items():
            if value is target:
                self.memo[key] = fresh

    def _read_array(self, wrapper: Any) -> Any:
        """joblib stores an array's bytes behind its wrapper, an object array as a nested pickle."""
        dtype, shape, np = wrapper.dtype, wrapper.shape, self.np
        if not isinstance(dtype, np.dtype) or not all(type(n) is int and n >= 0 for n in shape):
            raise Refused("a broken array")
        if dtype.hasobject:
            return SafeUnpickler(self.file_handle).load()
        if vars(wrapper).get("numpy_array_alignment_bytes") is not None:
            self.file_handle.read(self.file_handle.read(1)[0])
        data = self.file_handle.read(math.prod(shape) * dtype.itemsize)
        array = np.frombuffer(bytearray(data), dtype)
        array = array.reshape(shape[::-1]).T if wrapper.order == "F" else array.reshape(shape)
        return array.astype(dtype.newbyteorder("="), copy=False)

    def _check_filled(self, target: Any, kinds: tuple[type, ...]) -> None:
        if type(target) not in kinds and not (dict in kinds and isinstance(target, dict)):
            raise Refused(f"a {type(target).__name__} filled like a {kinds[0].__name__}")

    def load_append(self) -> None:
        self._check_filled(self.stack[-2], (list, deque))
        super().load_append()  # type: ignore[misc]

    def load_appends(self) -> None:
        self._check_filled(self.metastack[-1][-1], (list, deque))
        super().load_appends()  # type: ignore[misc]

    def load_additems(self) -> None:
        self._check_filled(self.metastack[-1][-1], (set,))
        super().load_additems()  # type: ignore[misc]

    def load_setitem(self) -> None:
        self._check_filled(self.stack[-3], (dict,))
        super().load_setitem()  # type: ignore[misc]
        self._note(self.stack[-1])

    def load_setitems(self) -> None:
        self._check_filled(self.metastack[-1][-1], (dict,))
        super().load_setitems()  # type: ignore[misc]
        self._note(self.stack[-1])

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.APPEND[0]] = load_append
    dispatch[pickle.APPENDS[0]] = load_appends
    dispatch[pickle.ADDITEMS[0]] = load_additems
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems


def _is_index(found: Any) -> bool:
    import pandas as pd

    return isinstance(found, type) and issubclass(found, pd.Index)


def read_bytes(path: str, limit: int = MAX_BYTES) -> bytes:
    """The content of a regular file; never follows a link, never waits for a pipe."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Fault(f"{path} is not a readable file") from error
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise Fault(f"{path} is not a regular file")
        if about.st_size > limit:
            raise Fault(f"{path} has {about.st_size} bytes, more than {limit}")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if not data:
        raise Fault(f"{path} is empty")
    return data


JOBLIB = b"joblib.numpy_pickle"
COMPRESSED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open))


def is_plain(path: str) -> bool:
    """Whether `pickle.load` can read it: `joblib` writes arrays apart, and both it and `pandas` compress."""
    data = read_bytes(path)
    return not data.startswith((b"x", *(magic for magic, _ in COMPRESSED))) and JOBLIB not in data


def _decompressed(data: bytes) -> bytes:
    """What `joblib` and `pandas` compressed. Raises `Fault` where it would be too much."""
    whole = data
    if data.startswith(b"x"):
        whole = zlib.decompressobj().decompress(data, MAX_BYTES + 1)
    for magic, opener in COMPRESSED:
        if data.startswith(magic):
            with opener(io.BytesIO(data)) as file:
                whole = file.read(MAX_BYTES + 1)
    if len(whole) > MAX_BYTES:
        raise Fault(f"it has more than {MAX_BYTES} bytes when decompressed")
    return whole


def load(path: str) -> Any:
    """Unpickle a file of pickle, joblib or pandas. Raises `Refused` or `Fault`."""
    data = read_bytes(path)
    try:
        return SafeUnpickler(io.BytesIO(_decompressed(data))).load()
    except Refused as error:
        raise Refused(f"{path} holds {error}") from None
    except Fault as error:
        raise Fault(f"{path} cannot be read: {error}") from None
    except Exception as error:  # a broken pickle raises anything
        raise Fault(f"{path} cannot be unpickled ({type(error).__name__})") from error
