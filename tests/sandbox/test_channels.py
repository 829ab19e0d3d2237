"""The descriptors between a worker and those who judge it: flooded, closed, forged, stuffed.

A worker holds one end of the channel on which it announces its end. Whoever announces it early is
dead when the result is there, and nothing that it says of itself makes a failed run look good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sandbox_kit import still_for

from mappa_envs.sandbox import Sandbox
from mappa_envs.types import ToolResult

pytestmark = pytest.mark.usefixtures("unharmed")
Run = Callable[..., ToolResult]
Provoke = Callable[[str], ToolResult]

WORDS = [
    b"0",
    b"1",
    b"-9",
    b"9" * 4000,
    b"started",
    b'{"exception": "Fine", "exit_code": 0, "limit": null}\n',
    b'{"id": 1, "exit_code": 0, "limit": null, "duration_s": 0}',
    b"\xff\x00" * 2000,
    "\u0660".encode(),
    b"",
]
"""What a worker might say at its end, and what it surely does not."""

SAY = """
import os, socket, sys, threading, time
def with_write(fd, word): os.write(fd, word)
def with_send(fd, word): socket.socket(fileno=os.dup(fd)).send(word)
def with_descriptors(fd, word): socket.send_fds(socket.socket(fileno=os.dup(fd)), [word], [0, 1, 2] * 20)
def say(word, ways=(with_write, with_send, with_descriptors)):
    for way in ways:
        for fd in range(3, 64):
            try: way(fd, word)
            except (OSError, ValueError): pass
"""
GO_ON = "\nwhile True: open('late', 'a').write('x')\n"


@pytest.fixture
def provoke(impatient: Sandbox) -> Provoke:
    """Run code that says something wrong; whatever comes of it, it must be over and the result sane."""
    return lambda code: asyncio.run(_provoke(impatient, code))


async def _provoke(sandbox: Sandbox, code: str) -> ToolResult:
    async with await sandbox.open() as workspace:
        result = await workspace.run(code)
        await still_for(workspace, "late")
    assert isinstance(result.exit_code, int)
    assert -64 <= result.exit_code <= 255
    assert result.limit in (None, "time", "disk", "output", "processes")
    assert result.exception is None or result.exception.isidentifier()
    assert 0 <= result.duration_s < 60
    return result


@pytest.mark.slow
def test_forged_end_then_going_on(impatient: Sandbox) -> None:
    async def scenario() -> list[ToolResult]:
        return await asyncio.gather(*(_provoke(impatient, f"{SAY}say({word!r}){GO_ON}") for word in WORDS))

    for word, result in zip(WORDS, asyncio.run(scenario()), strict=True):
        assert (result.stdout, result.stderr) == ("", ""), word


def test_forged_end_from_a_child(provoke: Provoke) -> None:
    """The one who speaks ends at once; those who go on are others."""
    provoke(
        f"{SAY}\nfor _ in range(6):\n  if os.fork() == 0:\n    os.setsid()\n    say(b'0')\n"
        "    while True: open('late', 'a').write('x')\nsay(b'0'); os._exit(0)"
    )


@pytest.mark.slow
def test_forged_end_in_a_flood_of_forks(provoke: Provoke) -> None:
    provoke(
        f"{SAY}\nos.fork(); os.fork(); say(b'0')\n"
        "while True:\n  if os.fork(): os._exit(0)\n  open('late', 'a')"
    )


def test_forged_end_is_no_way_around_a_failure(run: Run) -> None:
    """What it says first may be believed, but an error that it raised is an error."""
    result = run(f"{SAY}say(b'5', [with_write])\ntime.sleep(0.2)\nraise ValueError")
    assert not result.ok


def test_forged_report_is_a_claim_only(run: Run) -> None:
    claim = b'{"exception": "Fine", "exit_code": 0, "limit": null}\n'
    result = run(f"{SAY}try: os.write(4, {claim!r})\nexcept OSError: pass\nraise ValueError")
    assert (result.exit_code, result.limit, result.ok) == (1, None, False)
    assert result.exception in ("Fine", "ValueError")


@pytest.mark.parametrize(
    "way",
    [
        "with_descriptors",
        pytest.param("with_write", marks=pytest.mark.slow),
        pytest.param("with_send", marks=pytest.mark.slow),
    ],
)
def test_flood(provoke: Provoke, way: str) -> None:
    """Without end, on every descriptor, as fast as they take it."""
    provoke(f"{SAY}\nwhile True: say(b'x' * 4000, [{way}])")


@pytest.mark.slow
def test_flood_from_many_threads_while_working(provoke: Provoke) -> None:
    code = f"{SAY}\ndef flood():\n  while True: say(b'started')\n"
    provoke(code + "for _ in range(8): threading.Thread(target=flood, daemon=True).start()\nprint('worked')")


def test_closed_descriptors(run: Run) -> None:
    result = run(
        "import os\nprint('before')\nos.closerange(3, 256)\nopen('x', 'w').write('1')\nprint('after')"
    )
    assert (result.stdout, result.limit) == ("before\nafter\n", None)
    assert [record.path for record in result.files] == ["x"]
    assert run("import os\nos.closerange(0, 256)\nos._exit(3)").exit_code == 3


@pytest.mark.slow
def test_closed_descriptors_and_going_on(provoke: Provoke) -> None:
    result = provoke(f"import os\nos.closerange(0, 256){GO_ON}")
    assert not result.ok


@pytest.mark.slow
def test_channel_shut_down_but_held(provoke: Provoke) -> None:
    code = f"{SAY}\ndef shut(fd, _): socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)\n"
    result = provoke(f"{code}say(b'', [shut]){GO_ON}")
    assert not result.ok


def test_reading_the_channel_learns_nothing(run: Run) -> None:
    result = run(
        f"{SAY}\ndef listen(fd, _): os.set_blocking(fd, False); print(fd, os.read(fd, 4096))\n"
        "say(b'', [listen])"
    )
    assert result.stdout == ""


def test_what_came_before_an_exit_is_all_there(run: Run) -> None:
    """The result is complete although the worker is not dead yet when it is made."""
    result = run("import sys\nfor n in range(1500): print(n)\nopen('x', 'wb').write(bytes(8 << 20))")
    assert result.stdout == "".join(f"{n}\n" for n in range(1500))
    assert [(record.path, record.size) for record in result.files] == [("x", 8 << 20)]


def test_output_of_a_child_that_ends_with_it(run: Run) -> None:
    result = run(
        "import os\nfor n in range(5):\n  if os.fork() == 0:\n    print(n); os._exit(0)\n  os.wait()"
    )
    assert result.stdout == "0\n1\n2\n3\n4\n"


def test_inspection_with_a_hostile_mouth(sandbox: Sandbox) -> None:
    """Its script is trusted, but what it loads may take over: then there is no report, or a claim."""
    scripts = [
        "import os; os.kill(os.getpid(), 9); report(1)",
        "import os; os.closerange(3, 256); report(2)",
        "import os\nfor fd in range(3, 64):\n  try: os.write(fd, b'[3')\n  except OSError: pass\nreport(3)",
        "report(4); report(5)",
    ]

    async def scenario() -> list[object]:
        async with await sandbox.open() as workspace:
            return [await workspace.inspect(script) for script in scripts]

    assert asyncio.run(scenario()) == [None, None, None, 4]
