"""How a zygote begins: it imports the libraries, looks at what it is in, settles, and rehearses."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import pickle
import resource
import signal
import socket
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace

from . import pages, seccomp
from .worker import NEEDED_FDS
from .zygote import MAX_MESSAGE_BYTES, REHEARSAL, Zygote, close_all

_FREE_WORKSPACE = 1  # nobody's yet


def check_image(packages: Iterable[str], masks: Iterable[str], refused: Iterable[str]) -> None:
    """Does a container's image hold what it must, and nothing that gives tasks away?

    Raises `ImportError`, `LookupError` for a package. On the host, where the root is made to measure, all
    three are empty.
    """
    for name in packages:
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise LookupError(
                f"packages: {name!r} is not in the image: python -m mappa_envs build-image --package {name}"
            ) from None
    found = [name for name in refused if importlib.util.find_spec(name.replace("-", "_"))]
    folders = {os.path.join(entry, mask): mask for mask in masks for entry in sys.path}
    found += [mask for folder, mask in folders.items() if os.path.isdir(folder) and os.listdir(folder)]
    if found:
        raise ImportError(f"the image holds {found[0]}, from which tasks and their answers come")


def allow_open_files() -> None:
    """Raises `PermissionError` where workers could not open as many files as they need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < NEEDED_FDS:
        raise PermissionError(f"open files: at most {hard} are allowed here, workers need {NEEDED_FDS}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, NEEDED_FDS), hard))


def warm_up() -> None:
    """First calls do work that lasts: lazy imports, caches, compiled expressions.

    Nothing here may start threads or run an OpenMP loop, which would hang in forked children.
    """
    if "sklearn.ensemble" not in sys.modules or "pandas" not in sys.modules:
        return
    pandas, ensemble = sys.modules["pandas"], sys.modules["sklearn.ensemble"]
    linear_model = sys.modules["sklearn.linear_model"]
    text = "a,b,c\n" + "".join(f"{n},{n * 0.5},{n % 2}\n" for n in range(40))
    table = pandas.read_csv(io.StringIO(text))
    for model in (ensemble.RandomForestClassifier(3), linear_model.LogisticRegression()):
        model.fit(table[["a", "b"]], table["c"]).predict(table[["a", "b"]])
        pickle.loads(pickle.dumps(model))
    table.to_csv(io.StringIO())


def rehearse(zygote: Zygote) -> None:
    """Two runs of our own, to learn which pages are written to in every run: by a worker, and by the zygote.

    From here on both copy them before there is work. Where this fails, a real run will say why.
    """
    learned: pages.Ranges = array("Q")
    with contextlib.suppress(OSError, ValueError):
        zygote.isolation.make(_FREE_WORKSPACE, 1, 10)
        try:
            learned.extend(json.loads(_run_nothing(zygote)))
            zygote.setting = replace(zygote.setting, touched=learned)
            with _shared_with_child():
                _run_nothing(zygote)
                zygote.touched = pages.own_ranges()
        finally:
            zygote.isolation.remove(_FREE_WORKSPACE)
    zygote.setting = replace(zygote.setting, touched=learned)
    zygote.num_spares = 1


def _run_nothing(zygote: Zygote) -> bytes:
    """Its report."""
    code, report = os.memfd_create("code"), os.memfd_create("report")
    null = os.open(os.devnull, os.O_RDWR)
    limits = {"time_s": 30, "memory_bytes": 1 << 30, "processes": 64, "file_bytes": 1 << 20}
    request = {"id": REHEARSAL, "workspace": _FREE_WORKSPACE, "read_only": False, "limits": limits}
    try:
        os.write(code, b'{"blocks": ["print(1)"], "trusted": true}')
        zygote.do_run(request, [code, null, null, report])
        while zygote.running or zygote.dying:
            zygote.turn()
        return os.pread(report, MAX_MESSAGE_BYTES, 0)
    finally:
        close_all((code, null, report))


@contextlib.contextmanager
def _shared_with_child() -> Iterator[None]:
    """All pages that this process does not write to meanwhile stay shared with a fork that does nothing."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    try:
        yield
    finally:
        close_all((ours, theirs))
        os.waitpid(child, 0)


def main() -> None:
    """Import, settle, rehearse, serve."""
    config = json.loads(sys.argv[1])
    gc.disable()
    try:
        allow_open_files()
        for name in config["imports"]:
            importlib.import_module(name)
        check_image(config.get("packages", ()), config.get("masks", ()), config.get("refused", ()))
        warm_up()
        seccomp.make_ready()
        if len(os.listdir("/proc/self/task")) != 1:
            raise ImportError("a library started a thread, which forked workers cannot have")
    except (ImportError, LookupError, PermissionError) as error:
        text = f"import: {error}" if isinstance(error, ImportError) else str(error.args[0])
        with socket.socket(fileno=config["control_fd"]) as control:
            control.send(json.dumps({"op": "failed", "error": text}).encode())
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(config["control_fd"], False)
    zygote = Zygote(config)
    gc.enable()
    gc.collect()
    pages.collapse()
    # What lives now stays: collecting it in workers would copy all its pages.
    gc.freeze()
    rehearse(zygote)
    zygote.serve()
