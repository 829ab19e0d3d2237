"""`python -m mappa_envs doctor | data list | data check PATH | build-image`: the environments' own tools.

Exit codes: 0 all is well, 1 findings, 2 bad input, 3 this machine lacks something, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Protocol

from mappa_envs.errors import MappaError
from mappa_envs.view import printable

PACKAGES = (
    "gymnasium",
    "pettingzoo",
    "numpy",
    "pandas",
    "scipy",
    "scikit-learn",
    "sympy",
    "math-verify",
    "bokeh-sampledata",
    "pydantic",
)


_MARKS = {True: "ok", False: "PROBLEM", None: "-"}


class Line(Protocol):
    """What both kinds of finding have."""

    @property
    def ok(self) -> bool | None: ...

    @property
    def message(self) -> str: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code = int(options.run(options))
        print(end="", flush=True)  # not stdout.flush(): a service may have no stdout
        return code
    except MappaError as error:
        print(f"mappa_envs: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("mappa_envs: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our words has left
        _drop_output()
        return 0
    except OSError as error:  # a full disk, a name that no file can have
        _drop_output()
        print(f"mappa_envs: {printable(str(error)[:500])}", file=sys.stderr)
        return 2 if error.errno == errno.ENAMETOOLONG else 3


def _drop_output() -> None:
    """What could not be printed is not tried again at exit, with a second complaint."""
    with contextlib.suppress(AttributeError, io.UnsupportedOperation):  # a service may have no stdout
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mappa_envs", description="The environments' own tools.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor = commands.add_parser("doctor", help="what works on this machine, and what to do")
    doctor.set_defaults(run=_doctor)
    data = commands.add_parser("data", help="tasks of DSBench").add_subparsers(required=True, metavar="WHAT")
    listing = data.add_parser("list", help="the tasks of a source")
    listing.add_argument("--tasks", default="embedded", help='"embedded", "dsbench" or a folder')
    listing.add_argument("--split", choices=("train", "val", "test"), help="only this split")
    listing.add_argument("--max-mb", type=float, help="leave out tasks whose tables are larger")
    listing.set_defaults(run=_list)
    check = data.add_parser("check", help="can tasks of one's own be used?")
    check.add_argument(
        "path",
        metavar="PATH",
        help="a folder in DSBench's layout or in one's own, or a JSON (lines) file of maths problems",
    )
    check.set_defaults(run=_check)
    image = commands.add_parser("build-image", help="the image of the Docker sandbox")
    image.add_argument("--offline", action="store_true", help="from this machine's packages, without network")
    image.add_argument(
        "--package",
        action="append",
        default=[],
        metavar="NAME",
        help="a distribution that agents' code may import beyond the sandbox's own; may be repeated",
    )
    image.add_argument("--tag", help="the image's name (default: the one that the sandbox takes)")
    image.set_defaults(run=_build_image)
    return parser


def _doctor(options: argparse.Namespace) -> int:
    from mappa_envs.sandbox.doctor import probe

    missing = [name for name in PACKAGES if not _is_installed(name)]
    for name in PACKAGES:
        advice = f"is missing: pip install {name}" if name in missing else metadata.version(name)
        _say(f"{'MISSING' if name in missing else 'ok':8}{name}: {advice}")
    findings = probe()
    _print_lines((f"sandbox {finding.name}", finding) for finding in findings)
    return int(bool(missing) or any(finding.ok is False for finding in findings))


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _list(options: argparse.Namespace) -> int:
    from mappa_envs.dsbench.tasks import load_tasks

    tasks = load_tasks(options.tasks, options.split, max_mb=options.max_mb)
    width = max(len(task.task_id) for task in tasks)
    for task in tasks:
        targets = ", ".join(task.spec.target_columns)
        _say(f"{task.task_id:{width}}  {task.split:5}  {task.task_type:14}  {task.spec.metric:11}  {targets}")
    _say(f"{len(tasks)} tasks")
    return 0


def _check(options: argparse.Namespace) -> int:
    if Path(options.path).is_file():
        return _check_problems(options.path)
    from mappa_envs.dsbench.layout import check

    findings = check(options.path)
    _print_lines((finding.task, finding) for finding in findings)
    num_bad = sum(not finding.ok for finding in findings)
    _say(f"{len(findings)} tasks looked at, {num_bad} cannot be used")
    return int(num_bad > 0)


def _check_problems(path: str) -> int:
    """Maths problems: unreadable ones are an error; findings are the same one twice, and a useless answer."""
    from mappa_envs.mathchat.grading import judge
    from mappa_envs.mathchat.overlaps import find_overlaps
    from mappa_envs.mathchat.tasks import load_tasks

    tasks = load_tasks(path)
    overlaps = find_overlaps(tasks)
    useless = [
        (task.task_id, gold)
        for task in tasks
        for gold in task.golds
        if not judge(rf"\boxed{{{gold}}}", [gold]).right
    ]
    for task_id, gold in useless:
        _say(f"{'PROBLEM':8}{task_id!r}: nothing matches its answer {gold[:60]!r}: balance the braces")
    for overlap in overlaps:
        _say(f"{'LEAK' if overlap.leaks else 'TWICE':8}{overlap.message}")
    _say(
        f"{len(tasks)} problems looked at, {len(overlaps)} pairs are the same, "
        f"{len(useless)} answers can never be given"
    )
    return int(bool(overlaps or useless))


def _build_image(options: argparse.Namespace) -> int:
    from mappa_envs.sandbox.image_build import DEFAULT_IMAGE, build_image

    build_image(options.tag or DEFAULT_IMAGE, options.package, offline=options.offline)
    return 0


def _print_lines(lines: Iterable[tuple[str, Line]]) -> None:
    for name, line in lines:
        _say(f"{_MARKS[line.ok]:8}{name}: {line.message}")


def _say(line: str) -> None:
    # The names of tasks and columns are whatever their files hold.
    print(printable(line))


if __name__ == "__main__":
    sys.exit(main())
