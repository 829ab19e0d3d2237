"""The pieces that need no sandbox: cutting output, telling kinds, reading libraries, the fake."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import pytest
from sandbox_kit import in_fork

from mappa_envs.errors import ConfigError, SandboxError, SandboxUnavailable
from mappa_envs.sandbox import auto, namespace
from mappa_envs.sandbox.base import Limits, Workspace
from mappa_envs.sandbox.container import _bundle
from mappa_envs.sandbox.doctor import _CHECKS, _probe, probe
from mappa_envs.sandbox.elf import read_needs
from mappa_envs.sandbox.fake import FakeSandbox, FakeWorkspace
from mappa_envs.sandbox.inside import linux
from mappa_envs.sandbox.output import HeadTail
from mappa_envs.sandbox.relay import HEADER, Relay
from mappa_envs.sandbox.rootfs import plan_rootfs
from mappa_envs.sandbox.trail import kind_of
from mappa_envs.types import ToolResult


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000])
def test_head_tail(chunk: int) -> None:
    data = bytes(range(65, 91)) * 10
    stream = HeadTail(11, most=250)
    whole = [stream.add(data[start : start + chunk]) for start in range(0, len(data), chunk)]
    assert stream.text() == f"{data[:6].decode()}\n... [239 bytes cut] ...\n{data[245:250].decode()}"
    assert not whole[-1]


def test_head_tail_keeps_short_output_whole() -> None:
    stream = HeadTail(10, most=10_000)
    assert stream.add(b"12345")
    assert stream.add(b"67890")
    assert stream.text() == "1234567890"


@pytest.mark.parametrize(
    ("name", "head", "kind"),
    [
        ("a.csv", b"x,y\n", "csv"),
        ("a.csv", b"", "csv"),
        ("a.csv", b"\x80\x04\x95", "pickle"),
        ("a.csv", b"\x00\x01", "other"),
        ("m.pkl", b"\x80\x05", "pickle"),
        ("m.joblib", b"\x80\x05", "joblib"),
        ("m.txt", b"\x93NUMPY\x01", "npy"),
        ("m", b"PAR1", "parquet"),
        ("m.json", b"{}", "json"),
        ("m.md", "ü".encode(), "text"),
        ("m.md", b"\xff\xfe", "other"),
        ("m.md", b"a" * 4095 + "ü".encode()[:1], "text"),
    ],
)
def test_kind(name: str, head: bytes, kind: str) -> None:
    assert kind_of(name.encode(), head) == kind


def test_needs_of_the_interpreter() -> None:
    names, loader = read_needs(Path(sys.executable).resolve())
    assert any(name.startswith("libc.") for name in names)
    assert loader is not None
    assert read_needs(Path(__file__)) == ([], None)


def test_plan_holds_only_what_is_allowed() -> None:
    plan = plan_rootfs()
    names = {target.split("/")[3] for _, target in plan.binds if target.startswith("/opt/packages/")}
    assert {"numpy", "pandas", "scipy", "sklearn", "sympy", "joblib"} <= names
    assert not names & {"mappa_envs", "torch", "pip", "setuptools", "pytest", "bokeh_sampledata"}
    assert "/opt/packages/sklearn/datasets/data" in plan.masks


def test_a_container_is_sent_all_that_its_code_imports(tmp_path: Path) -> None:
    """Without the packages that are installed here."""
    for name, text in _bundle().items():
        path = tmp_path / "mappa_envs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    modules = ("mappa_envs.sandbox.relay", "mappa_envs.sandbox.inside.start")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {', '.join(modules)}"
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_answer_that_cannot_be_sent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked would wait for ever."""
    sent: list[bytes] = []

    async def read(relay: Relay, request: object, blob: bytes) -> tuple[object, bytes]:
        return object(), b""

    async def keep(relay: Relay, message: bytes) -> None:
        sent.append(message)

    async def scenario() -> None:
        config = {"limits": asdict(Limits()), "shared": [], "num_workspaces": 1}
        await Relay(config)._answer({"op": "read", "id": 7}, b"")

    monkeypatch.setattr(Relay, "do_read", read)
    monkeypatch.setattr(Relay, "_send", keep)
    asyncio.run(scenario())
    (message,) = sent
    answer = json.loads(message[HEADER.size :])
    assert (answer["id"], answer["kind"]) == (7, "TypeError")
    assert "JSON" in answer["error"]


def test_fake() -> None:
    def script(blocks: Sequence[str], files: dict[str, bytes]) -> ToolResult:
        files["out.csv"] = files.pop("in.csv") + b"2\n"
        return ToolResult(stdout=f"{len(blocks)} blocks")

    async def scenario() -> None:
        sandbox = FakeSandbox(script, inspector=lambda _, files: sorted(files))
        async with await sandbox.open({"in.csv": b"1\n"}) as workspace:
            result = await workspace.run(["a", "b"])
            assert result.stdout == "2 blocks"
            assert [(r.path, r.change, r.kind) for r in result.files] == [
                ("in.csv", "deleted", "csv"),
                ("out.csv", "created", "csv"),
            ]
            assert await workspace.inspect("script") == ["out.csv"]
            assert await workspace.read("out.csv", 10) == b"1\n2\n"
            with pytest.raises(FileNotFoundError):
                await workspace.read("in.csv", 10)
            with pytest.raises(ValueError, match="larger"):
                await workspace.read("out.csv", 1)
        with pytest.raises(SandboxError, match="closed"):
            await workspace.run("a")

    asyncio.run(scenario())


def test_fake_default_is_an_empty_success() -> None:
    async def scenario() -> ToolResult:
        async with FakeSandbox() as sandbox:
            return await (await sandbox.open()).run("print(1)")

    assert asyncio.run(scenario()) == ToolResult()


class SlowSandbox(FakeSandbox):
    """Takes a moment to start, and counts who does; `fails` of them do not work."""

    started: ClassVar[list[SlowSandbox]] = []
    fails = 0

    async def open(self, files: Mapping[str, Path | bytes] | None = None) -> FakeWorkspace:
        if not self.workspaces:
            self.started.append(self)
            await asyncio.sleep(0.02)
            if len(self.started) <= SlowSandbox.fails:
                raise SandboxUnavailable("not here")
        return await super().open(files)


@pytest.fixture
def slow_auto(monkeypatch: pytest.MonkeyPatch) -> auto.AutoSandbox:
    monkeypatch.setattr(SlowSandbox, "started", [])
    monkeypatch.setattr(auto, "open_sandbox", lambda *args, **options: SlowSandbox())
    return auto.AutoSandbox()


def test_auto_starts_one_sandbox_however_many_open_at_once(slow_auto: auto.AutoSandbox) -> None:
    async def many() -> list[Workspace]:
        return await asyncio.gather(*(slow_auto.open() for _ in range(5)))

    with ThreadPoolExecutor(2) as threads:  # from two loops
        found = [
            workspace for part in threads.map(lambda _: asyncio.run(many()), range(2)) for workspace in part
        ]
    (sandbox,) = SlowSandbox.started
    assert len(found) == len(sandbox.workspaces) == 10


def test_auto_goes_on_if_whoever_chooses_is_cancelled(slow_auto: auto.AutoSandbox) -> None:
    async def scenario() -> Workspace:
        first, second = asyncio.create_task(slow_auto.open()), asyncio.create_task(slow_auto.open())
        await asyncio.sleep(0.005)
        first.cancel()
        return await second

    asyncio.run(scenario())
    given_up, taken = SlowSandbox.started
    assert (given_up.closed, taken.closed, len(taken.workspaces)) == (True, False, 1)


def test_what_is_chosen_while_auto_is_closed_is_closed_as_well(slow_auto: auto.AutoSandbox) -> None:
    async def scenario() -> None:
        opening = asyncio.create_task(slow_auto.open())
        await asyncio.sleep(0.005)
        await slow_auto.close()
        with pytest.raises(SandboxError, match="closed"):
            await opening
        await slow_auto.open()  # as after any other close

    asyncio.run(scenario())
    assert [sandbox.closed for sandbox in SlowSandbox.started] == [True, False]


def test_where_no_sandbox_works_all_who_wait_are_told(
    slow_auto: auto.AutoSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def many() -> list[object]:
        return await asyncio.gather(*(slow_auto.open() for _ in range(3)), return_exceptions=True)

    monkeypatch.setattr(SlowSandbox, "fails", 2)
    assert [type(error) for error in asyncio.run(many())] == [SandboxUnavailable] * 3
    assert [sandbox.closed for sandbox in SlowSandbox.started] == [True, True]
    assert len(asyncio.run(many())) == 3  # later it does
    assert len(SlowSandbox.started) == 3


@pytest.mark.slow
def test_probe_says_what_auto_takes() -> None:
    findings = {finding.name: finding for finding in probe()}
    works = [kind for kind in ("namespace", "docker") if findings[kind].ok]
    if works:
        assert findings["auto"].message == f"takes {works[0]}"
        assert all(finding.ok is not False for finding in findings.values())
    else:
        assert [finding.ok for finding in findings.values()] == [False, False]


def test_no_code_runs_as_the_root_of_the_host() -> None:
    """In a user namespace of its own, without the right to anybody else's id."""

    def pick() -> str | int | None:
        uid = os.geteuid()
        linux.unshare(linux.CLONE_NEWUSER, "user")
        linux.write("/proc/self/uid_map", f"0 {uid} 1")
        try:
            return namespace.pick_uid_base()
        except SandboxUnavailable as error:
            return str(error)

    if os.geteuid() == 0:
        assert "this is the host's root" in in_fork(pick)
    else:
        assert in_fork(pick) is None


@pytest.mark.slow
def test_the_probe_believes_in_the_sandbox_of_an_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """All its processes are the user's, who may seem to be allowed to read what opening refuses."""
    monkeypatch.setattr(namespace, "pick_uid_base", lambda: None)
    finding = asyncio.run(_probe("namespace"))
    assert (finding.ok, finding.message.partition(";")[0]) == (True, f"isolates ({', '.join(_CHECKS)})")


def test_a_limit_that_stops_the_first_process_is_refused() -> None:
    with pytest.raises(ConfigError, match="processes must be at least 2, got 1"):
        Limits(processes=1)
    assert Limits(processes=2).processes == 2


def test_a_worker_lets_others_first_and_is_as_nice_as_before() -> None:
    def asked() -> tuple[int, int]:
        os.nice(3)
        before = os.nice(0)
        linux.let_others_first()
        return os.sched_getscheduler(0), os.nice(0) - before

    assert in_fork(asked) == (os.SCHED_BATCH, 0)
