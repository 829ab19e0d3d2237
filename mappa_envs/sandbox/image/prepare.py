"""Makes an image what the sandbox expects. Runs once, as root, inside the image that is being built.

Its settings come from the Dockerfile's arguments. Exit codes: 2 a package that cannot or must not be
installed, 1 anything else.
"""

import compileall
import importlib
import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

BAD_PACKAGE = 2
BUILD = Path(__file__).parent
AGENT_IDS = range(10_000, 10_257)
"""Of the workspaces of a container, which are numbered from 1, and of nobody before them."""


def main() -> None:
    if os.environ["INSTALL"] == "1":
        install(setting("PACKAGES"))
    folders = [Path(folder) for folder in sys.path if Path(folder).is_dir() and Path(folder) != BUILD]
    refuse(setting("REFUSED"))
    remove_data(folders, setting("MASKS"))
    for folder in folders:
        # Once and here, since containers are read-only. What does not compile is a test of bad syntax.
        compileall.compile_dir(folder, quiet=2)
    for name in setting("IMPORTS"):
        importlib.import_module(name)
    write_accounts()
    drop_setuid()
    make_folders()
    shutil.rmtree(BUILD)


def setting(name: str) -> list[str]:
    if name not in os.environ:
        sys.exit(f"prepare.py: {name} is not set; build with `python -m mappa_envs build-image`")
    return os.environ[name].split()


def install(packages: list[str]) -> None:
    """From the package index: the pinned ones, then the user's, so that a failure tells which."""
    pip = [sys.executable, "-m", "pip"]
    quiet = [
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--root-user-action=ignore",
        "--progress-bar=off",
    ]
    command = [*pip, "install", *quiet, "-r", str(BUILD / "requirements.txt")]
    if subprocess.run(command).returncode != 0:
        sys.exit("prepare.py: pip cannot install the pinned packages (see above)")
    if packages and subprocess.run([*command, *packages]).returncode != 0:
        print(f"prepare.py: pip cannot install {' '.join(packages)} (see above)", file=sys.stderr)
        sys.exit(BAD_PACKAGE)
    subprocess.run([*pip, "uninstall", "-y", "--root-user-action=ignore", "pip"], check=True)


def refuse(refused: list[str]) -> None:
    """Also what came in as another package's requirement."""
    found = {
        re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        for distribution in importlib.metadata.distributions()
    }
    if present := sorted(found.intersection(refused)):
        print(f"prepare.py: {', '.join(present)}: ships tasks with their answers", file=sys.stderr)
        sys.exit(BAD_PACKAGE)


def remove_data(folders: list[Path], masks: list[str]) -> None:
    """Ready-made data, in which tasks could be found, and the standard library's copy of pip.

    The data's folders stay, empty: whoever looks for a file is told that there is none.
    """
    for folder in folders:
        shutil.rmtree(folder / "ensurepip", ignore_errors=True)
        for data in [*(folder / mask for mask in masks), *folder.glob("**/tests/data")]:
            if data.is_dir():  # not yet gone with one around it
                shutil.rmtree(data)
                data.mkdir()


def write_accounts() -> None:
    """Every worker has a number of its own and the same name."""
    users = [f"agent:x:{number}:{number}::/workspace:/bin/false" for number in AGENT_IDS]
    groups = [f"agent:x:{number}:" for number in AGENT_IDS]
    Path("/etc/passwd").write_text("\n".join(["root:x:0:0::/:/bin/false", *users, ""]))
    Path("/etc/group").write_text("\n".join(["root:x:0:", *groups, ""]))


def drop_setuid() -> None:
    for root, folders, names in os.walk("/"):
        if root == "/":
            folders[:] = [name for name in folders if name not in ("proc", "sys", "dev")]
        for path in (os.path.join(root, name) for name in names):
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                os.chmod(path, stat.S_IMODE(mode) & ~(stat.S_ISUID | stat.S_ISGID))


def make_folders() -> None:
    for folder in ("/ws", "/scratch"):
        Path(folder).mkdir()
        # The umask has no say. Agents pass through to their own folder and cannot list the others'.
        Path(folder).chmod(0o711)
    shutil.rmtree("/tmp", ignore_errors=True)
    # All workers of a container share one file system and may mount nothing. Each keeps its own two
    # folders open at these descriptors, so that the same path leads every one of them to its own.
    Path("/tmp").symlink_to("/proc/self/fd/8")
    Path("/workspace").symlink_to("/proc/self/fd/9")


if __name__ == "__main__":
    main()
