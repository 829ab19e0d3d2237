"""What the Docker sandbox relies on in its image, and what building one says where it cannot."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker
import pytest
import requests

from mappa_envs.__main__ import main
from mappa_envs.errors import ConfigError, SandboxUnavailable, UnavailableError
from mappa_envs.sandbox import image_build
from mappa_envs.sandbox.container import NUM_WORKSPACES
from mappa_envs.sandbox.image.prepare import AGENT_IDS
from mappa_envs.sandbox.image_build import LABEL, build_image, connect
from mappa_envs.sandbox.inside.isolation import FIRST_UID
from mappa_envs.sandbox.rootfs import DISTRIBUTIONS, IMPORTS, MASKS, OPTIONAL

Ask = Callable[..., Any]

AGENT = "10007:10007"
WALK = """
import json, os, stat, sys
def walk(top="/"):
    for root, folders, names in os.walk(top):
        folders[:] = [name for name in folders if os.path.join(root, name) not in ("/proc", "/sys", "/dev")]
        yield from (os.path.join(root, name) for name in (*folders, *names))
"""


@pytest.fixture
def ask(docker_client: Any, docker_image: str) -> Ask:
    """What a script prints as JSON, run in a fresh read-only container without network."""

    def run(script: str, user: str = "0:0") -> Any:
        output = docker_client.containers.run(
            docker_image,
            ["python3", "-c", script],
            network_mode="none",
            read_only=True,
            remove=True,
            user=user,
        )
        return json.loads(output)

    return run


@pytest.mark.docker
@pytest.mark.slow
def test_an_agents_code_can_import_the_libraries_and_all_are_byte_compiled(ask: Ask) -> None:
    found = ask(
        f"""
import importlib, importlib.metadata, json, os, sys
for name in {IMPORTS!r}: importlib.import_module(name)
specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
sources = [spec for spec in specs if spec and (spec.origin or "").endswith(".py")]
print(json.dumps(dict(
    versions={{name: importlib.metadata.version(name) for name in {DISTRIBUTIONS!r}}},
    compiled=sum(os.path.isfile(spec.cached) for spec in sources),
    not_compiled=[spec.origin for spec in sources if not os.path.isfile(spec.cached)],
)))
""",
        user=AGENT,
    )
    assert all(found["versions"].values())
    assert found["compiled"] > 500
    assert found["not_compiled"] == []


@pytest.mark.docker
@pytest.mark.slow
def test_example_data_pip_and_this_project_are_not_in_it(ask: Ask) -> None:
    found = ask(
        f"""
{WALK}
import importlib.util
from sklearn.datasets import load_iris
try:
    load_iris()
except OSError as error:
    iris = type(error).__name__
masks = [os.path.join(folder, mask) for folder in sys.path for mask in {MASKS!r}]
names = ("numpy", "pip", "ensurepip", "mappa_envs", "reasoning_gym", "bokeh_sampledata")
print(json.dumps(dict(
    iris=iris,
    masks=[os.listdir(path) for path in masks if os.path.isdir(path)],
    data=[path for path in walk() if "/tests/data/" in path],
    importable=[name for name in names if importlib.util.find_spec(name)],
)))
"""
    )
    assert found["iris"] == "FileNotFoundError"
    assert found["masks"] == [[]] * len(MASKS)
    assert found["data"] == []
    assert found["importable"] == ["numpy"]


@pytest.mark.docker
@pytest.mark.slow
def test_accounts_links_and_folders(ask: Ask) -> None:
    found = ask(
        """
import grp, json, os, pwd, stat
users = pwd.getpwall()
def about(path):
    status = os.lstat(path)
    return [stat.filemode(status.st_mode), status.st_uid, os.listdir(path)]
print(json.dumps(dict(
    users=[[user.pw_name, user.pw_uid, user.pw_gid, user.pw_dir, user.pw_shell] for user in users],
    groups=[[group.gr_name, group.gr_gid] for group in grp.getgrall()],
    links=[os.readlink("/tmp"), os.readlink("/workspace")],
    folders=[about("/ws"), about("/scratch")],
)))
"""
    )
    ids = AGENT_IDS
    assert found["users"][0][:3] == ["root", 0, 0]
    assert found["users"][1:] == [["agent", number, number, "/workspace", "/bin/false"] for number in ids]
    assert found["groups"] == [["root", 0], *(["agent", number] for number in ids)]
    assert found["links"] == ["/proc/self/fd/8", "/proc/self/fd/9"]
    assert found["folders"] == [["drwx--x--x", 0, []]] * 2


@pytest.mark.docker
@pytest.mark.slow
def test_a_path_of_the_links_leads_each_process_to_its_own_folder(ask: Ask) -> None:
    found = ask(
        """
import json, os
def listing(folder):
    os.dup2(os.open(folder, os.O_PATH), 9)
    return sorted(os.listdir("/workspace"))
print(json.dumps([listing("/ws"), listing("/opt") == sorted(os.listdir("/opt"))]))
"""
    )
    assert found == [[], True]


@pytest.mark.docker
@pytest.mark.slow
def test_nothing_is_setuid_or_writable_by_agents(ask: Ask) -> None:
    found = ask(
        f"""
{WALK}
files = {{path: os.lstat(path) for path in walk() if not os.path.islink(path)}}
def is_setuid(mode): return stat.S_ISREG(mode) and mode & 0o6000
print(json.dumps(dict(
    num_files=len(files),
    setuid=[path for path, status in files.items() if is_setuid(status.st_mode)],
    writable=[path for path, status in files.items() if status.st_mode & 0o002],
    not_roots=[path for path, status in files.items() if status.st_uid != 0],
)))
"""
    )
    assert found["num_files"] > 5000
    assert found["setuid"] == found["writable"] == found["not_roots"] == []


@pytest.mark.docker
@pytest.mark.slow
def test_an_offline_build_leaves_one_image_and_nothing_else(docker_client: Any) -> None:
    """The image that had its name before is gone."""
    name, tag = "mappa-sandbox", "mappa-sandbox:of-a-test"
    lines: list[str] = []
    before = _tags(docker_client)
    docker_client.api.import_image_from_data(
        bytes(10_240), repository=name, tag=tag.partition(":")[2], changes=[f"LABEL {LABEL}=1"]
    )
    try:
        assert _tags(docker_client) == sorted([*before, tag])
        build_image(tag, ["pytz"], offline=True, log=lines.append)
        assert _tags(docker_client) == sorted([*before, tag])
    finally:
        docker_client.images.remove(tag)
    assert _tags(docker_client) == before
    assert "prepare.py" in "".join(lines)


@pytest.mark.parametrize("answer", ["lost", '{"errorDetail": "no room"}'])
def test_a_base_that_was_not_taken_as_it_should_is_removed(
    monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    """The daemon may have stored it all the same, or may not."""
    stored: list[str] = []

    def take(data: object, repository: str, tag: str, changes: object) -> str:
        stored.append(f"{repository}:{tag}")
        if answer == "lost":
            raise requests.ReadTimeout("Read timed out.")
        return answer

    def remove(name: str, force: bool) -> None:
        stored.remove(name)
        if answer != "lost":
            raise docker.errors.ImageNotFound("no such image")

    client = SimpleNamespace(
        api=SimpleNamespace(import_image_from_data=take),
        images=SimpleNamespace(remove=remove),
        close=lambda: None,
    )
    monkeypatch.setattr(image_build, "connect", lambda: client)
    monkeypatch.setattr(image_build, "stream_base", lambda plan: b"")
    with pytest.raises(UnavailableError, match=r"Read timed out|no room"):
        build_image(offline=True, log=_ignore)
    assert stored == []


@pytest.mark.docker
@pytest.mark.slow
def test_without_a_registry_the_error_names_the_offline_build(docker_client: Any) -> None:
    before = _tags(docker_client)
    base = {"BASE": "localhost:1/none"}
    with pytest.raises(UnavailableError, match="build-image --offline"):
        image_build._build(docker_client, "mappa-sandbox:of-a-test", base, _ignore, offline=False)
    assert _tags(docker_client) == before


@pytest.mark.docker
@pytest.mark.slow
def test_a_refused_package_that_another_one_brings_fails_the_build(
    docker_client: Any, docker_image: str
) -> None:
    before = _tags(docker_client)
    arguments = {"BASE": docker_image, "INSTALL": "0", "REFUSED": "pandas"}
    lines: list[str] = []
    with pytest.raises(ConfigError, match="must not be installed"):
        image_build._build(docker_client, "mappa-sandbox:of-a-test", arguments, lines.append, offline=True)
    assert "pandas: ships tasks with their answers" in "".join(lines)
    assert _tags(docker_client) == before


@pytest.mark.parametrize("offline", [[], ["--offline"]])
@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("mappa", "ships tasks with answers"),
        ("Reasoning_Gym", "ships tasks with answers"),
        ("bokeh.sampledata", "ships tasks with answers"),
        ("--index-url=x", "no distribution's name"),
        ("numpy scipy", "no distribution's name"),
        ("https://example.org/x.whl", "no distribution's name"),
    ],
)
def test_a_bad_package_is_bad_input_before_any_daemon_is_asked(
    name: str, complaint: str, offline: list[str], monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert main(["build-image", f"--package={name}", *offline]) == 2
    assert complaint in capsys.readouterr().err


def test_offline_a_package_has_to_be_installed_here(monkeypatch: Any) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(ConfigError, match="pip install no-such-package-at-all"):
        build_image(packages=["no-such-package-at-all"], offline=True)


@pytest.mark.parametrize("tag", ["", "Upper:1", "-x", "a b", "mappa-sandbox:"])
def test_a_senseless_tag_is_bad_input(tag: str) -> None:
    with pytest.raises(ConfigError, match="is no image name"):
        build_image(tag)


def test_an_unreachable_daemon_is_named_with_what_to_do(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert main(["build-image"]) == 3
    message = capsys.readouterr().err
    assert "DOCKER_HOST=unix:///nowhere/docker.sock" in message
    assert "start one" in message
    assert "Traceback" not in message


def test_without_the_docker_package_the_error_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(SandboxUnavailable, match=re.escape('-e ".[docker]"')):
        connect()


def test_every_workspace_of_a_container_has_an_account() -> None:
    assert {FIRST_UID + number for number in range(1, NUM_WORKSPACES + 1)} <= set(AGENT_IDS)


def test_the_images_pins_are_those_of_the_tested_set() -> None:
    root = Path(__file__).parents[2]
    pins = (root / "mappa_envs/sandbox/image/requirements.txt").read_text().split()
    assert {pin.partition("==")[0] for pin in pins} >= {*DISTRIBUTIONS, *OPTIONAL}
    assert set(pins) <= set((root / "constraints.txt").read_text().split())


def _tags(client: Any) -> list[str]:
    """Of all images; one without a name counts as its number."""
    return sorted(tag for image in client.images.list() for tag in (image.tags or [image.id]))


def _ignore(text: str) -> None:
    pass
