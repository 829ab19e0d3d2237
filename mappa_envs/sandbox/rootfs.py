"""What the sandbox's root is made of: one interpreter and an allow-list of packages.

Everything is mounted at fixed places (`/opt/python`, `/opt/packages`, `/opt/lib`), so that
tracebacks read the same on every machine and nothing else of the host is there to be found.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappa_envs.errors import ConfigError, SandboxUnavailable
from mappa_envs.sandbox.elf import read_needs, system_libraries

DISTRIBUTIONS = ("numpy", "pandas", "scipy", "scikit-learn", "sympy", "joblib")
"""What agents' code can always import, with all that these require."""
OPTIONAL = ("pytz", "tzdata")

REFUSED = frozenset({"mappa", "reasoning-gym", "bokeh-sampledata"})
"""Distributions that hold tasks with their answers."""

MASKS = ("sklearn/datasets/data", "sklearn/datasets/images", "sklearn/datasets/tests", "pandas/tests")
"""Folders with ready-made data, from which the embedded tasks come; and so are all `tests/data`."""

IMPORTS = (
    "numpy", "pandas", "scipy.stats", "scipy.optimize", "scipy.sparse", "sklearn.ensemble",
    "sklearn.linear_model", "sklearn.preprocessing", "sklearn.model_selection", "sklearn.pipeline",
    "sympy", "sklearn.impute", "sklearn.compose", "sklearn.metrics", "pickle", "joblib", "json", "csv", "re",
)  # fmt: skip
"""Imported once, by the zygote."""

ENVIRONMENT = {
    "PATH": "/opt/python/bin",
    "LD_LIBRARY_PATH": "/opt/lib",
    "PYTHONPATH": "/opt/packages",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "LANG": "C.UTF-8",
    "HOME": "/workspace",
    "USER": "agent",
    "TMPDIR": "/tmp",
    "MPLCONFIGDIR": "/tmp",
    "MPLBACKEND": "Agg",
    # One thread: several would hang in forked children, and runs share the machine's cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "LOKY_MAX_CPU_COUNT": "1",
    # Without it n_jobs=2 starts cold interpreters, which takes longer than most fits.
    "JOBLIB_MULTIPROCESSING": "0",
}
_START = (
    "import sys; sys.path.append('/opt/sandbox'); from inside.start import main;"
    " sys.path.remove('/opt/sandbox'); main()"
)


@dataclass(frozen=True, kw_only=True)
class Rootfs:
    """Mounts (host path, path inside), folders to cover with an empty one, and the zygote's command."""

    binds: tuple[tuple[str, str], ...]
    masks: tuple[str, ...]
    command: tuple[str, ...]


def canonical(name: str) -> str:
    """A distribution's name as indexes compare it. Raises `ConfigError` for those of `REFUSED`."""
    plain = re.sub(r"[-_.]+", "-", name).lower()
    if plain in REFUSED:
        raise ConfigError(f"packages: {name!r} ships tasks with answers and never enters the sandbox")
    return plain


def plan_rootfs(packages: Sequence[str] = ()) -> Rootfs:
    """Find it all on this machine.

    Raises `ConfigError` for a package that is not installed or must not be there, and
    `SandboxUnavailable` where the interpreter itself cannot be mounted.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    executable = _interpreter()
    stdlib = Path(sysconfig.get_path("stdlib")).resolve()
    inside_stdlib = f"/opt/python/{sys.platlibdir}/{version}"
    binds = {inside_stdlib: stdlib, f"/opt/python/bin/{version}": executable}
    folders = [stdlib / "lib-dynload"]
    for name, path in _package_paths(packages).items():
        binds[f"/opt/packages/{name}"] = path
        folders.append(path)
    extensions = [path for folder in folders for path in _extension_modules(folder)]
    loader = read_needs(executable)[1]
    init = shutil.which("sleep")
    if loader is None or init is None:
        raise SandboxUnavailable(f"no usable interpreter ({executable}) or no `sleep` program on PATH")
    binds["/opt/bin/init"] = Path(init).resolve()
    binds[loader] = Path(loader).resolve()
    # The loader's own name is no library to look up.
    provided = {path.name for path in extensions} | {Path(loader).name}
    for name, path in system_libraries([executable, binds["/opt/bin/init"], *extensions], provided).items():
        binds[f"/opt/lib/{name}"] = path
    if Path("/usr/share/zoneinfo").is_dir():
        binds["/usr/share/zoneinfo"] = Path("/usr/share/zoneinfo")
    binds["/opt/sandbox/inside"] = Path(__file__).parent / "inside"
    return Rootfs(
        binds=tuple((os.path.realpath(source), target) for target, source in binds.items()),
        masks=tuple(_masks(binds, inside_stdlib)),
        command=(f"/opt/python/bin/{version}", "-s", "-P", "-B", "-c", _START),
    )


def _interpreter() -> Path:
    base = getattr(sys, "_base_executable", None) or sys.executable
    if not base:
        raise SandboxUnavailable("sys.executable is empty: no interpreter to run inside")
    return Path(base).resolve()


def _masks(binds: dict[str, Path], inside_stdlib: str) -> Iterable[str]:
    for name in ("site-packages", "dist-packages"):
        if (binds[inside_stdlib] / name).is_dir():
            yield f"{inside_stdlib}/{name}"
    for mask in MASKS:
        package, _, rest = mask.partition("/")
        source = binds.get(f"/opt/packages/{package}")
        if source is not None and (source / rest).is_dir():
            yield f"/opt/packages/{mask}"
    for target, source in binds.items():
        if target.startswith("/opt/packages/"):
            for folder in source.glob("**/tests/data"):
                inside = f"{target}/{folder.relative_to(source).as_posix()}"
                if not any(inside.startswith(f"/opt/packages/{mask}") for mask in MASKS):
                    yield inside


def _extension_modules(folder: Path) -> Iterable[Path]:
    if folder.is_file():
        yield from [folder] if ".so" in folder.name else []
        return
    for root, _, names in os.walk(folder):
        for name in names:
            # Tk needs a display and half of X11.
            if (name.endswith(".so") or ".so." in name) and not name.startswith("_tkinter"):
                yield Path(root) / name


def _package_paths(packages: Sequence[str]) -> dict[str, Path]:
    """Top-level names in site-packages of the allow-list's closure → their host paths."""
    found: dict[str, Path] = {}
    seen: set[str] = set()
    waiting = [(name, True) for name in (*DISTRIBUTIONS, *packages)] + [(name, False) for name in OPTIONAL]
    while waiting:
        name, required = waiting.pop()
        name = canonical(name)
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if required:
                raise ConfigError(f"packages: {name!r} is not installed: pip install {name}") from None
            continue
        found |= _top_level(distribution)
        waiting += [(requirement, False) for requirement in _requirements(distribution)]
    return found


def _requirements(distribution: importlib.metadata.Distribution) -> Iterable[str]:
    for line in distribution.requires or ():
        requirement, _, marker = line.partition(";")
        match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
        if match and "extra" not in marker:
            yield match[0]


def _top_level(distribution: importlib.metadata.Distribution) -> dict[str, Path]:
    record = distribution.read_text("RECORD") or ""
    names = {line.partition(",")[0].strip('"').partition("/")[0] for line in record.splitlines()}
    names -= {"", "..", "__pycache__"}
    if not any(not name.endswith((".dist-info", ".pth")) for name in names):
        raise ConfigError(f"packages: {distribution.name!r} has no importable files (installed as editable?)")
    base = Path(str(distribution.locate_file("")))
    return {name: base / name for name in names if (base / name).exists() and not name.endswith(".pth")}
