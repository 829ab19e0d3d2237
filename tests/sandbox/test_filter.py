"""The system-call filter, run here instruction by instruction as the kernel would."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import socket
import struct

import pytest

from mappa_envs.sandbox.inside.seccomp import (
    AUDIT_ARCH,
    CLONE,
    CLONE3,
    DENIED,
    MMAP,
    OPENAT,
    PRLIMIT,
    REFUSED_CLONES,
    SETRLIMIT,
    SOCKETPAIR,
    WRITING,
    X32_BIT,
    program,
)

ALLOW, KILL = 0x7FFF0000, 0x80000000
MACHINES = list(AUDIT_ARCH)
machines = pytest.mark.parametrize("machine", MACHINES)


def fail(number: int) -> int:
    return 0x50000 | number


def decide(code: bytes, machine: str, number: int, *arguments: int) -> int:
    """What the filter returns, after at most as many steps as it has instructions."""
    data = struct.pack("<IIQ6Q", number, AUDIT_ARCH[machine], 0, *(*arguments, *[0] * 6)[:6])
    instructions = list(struct.iter_unpack("HBBI", code))
    at = value = 0
    for _ in instructions:
        kind, if_true, if_false, operand = instructions[at]
        at += 1
        match kind:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
            case 0x54:
                value &= operand
            case 0x06:
                return int(operand)
            case _:
                holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[kind]
                at += if_true if holds else if_false
    raise AssertionError("no return")


@machines
@pytest.mark.parametrize("read_only", [False, True])
def test_filter_decides_by_its_tables(machine: str, read_only: bool) -> None:
    code = program(machine, read_only=read_only)
    column = MACHINES.index(machine)
    denied = {numbers[column] for numbers in (DENIED | WRITING if read_only else DENIED).values()}
    by_arguments = {call[machine] for call in (CLONE, SOCKETPAIR, OPENAT, MMAP, PRLIMIT, SETRLIMIT)}
    for number in range(600):
        if number not in by_arguments:
            expected = errno.EPERM if number in denied else errno.ENOSYS if number == CLONE3 else 0
            assert decide(code, machine, number) == (fail(expected) if expected else ALLOW), number


@machines
def test_filter_looks_at_arguments(machine: str) -> None:
    code, reading = program(machine, read_only=False), program(machine, read_only=True)
    denied = fail(errno.EPERM)
    assert decide(code, machine, CLONE[machine], 17) == ALLOW
    for bit in range(32):
        refused = REFUSED_CLONES >> bit & 1
        assert decide(code, machine, CLONE[machine], 17 | 1 << bit) == (denied if refused else ALLOW)
    stream = socket.SOCK_STREAM | socket.SOCK_CLOEXEC
    assert decide(code, machine, SOCKETPAIR[machine], 1, stream) == ALLOW
    assert decide(code, machine, SOCKETPAIR[machine], 1, socket.SOCK_DGRAM) == denied
    assert decide(code, machine, SOCKETPAIR[machine], 30, stream) == denied
    assert decide(code, machine, OPENAT[machine], 0, 0, os.O_WRONLY) == ALLOW
    assert decide(reading, machine, OPENAT[machine], 0, 0, os.O_RDONLY | os.O_CLOEXEC) == ALLOW
    for flag in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC):
        assert decide(reading, machine, OPENAT[machine], 0, 0, flag) == denied


@machines
def test_filter_lets_no_memory_be_shared_without_a_file(machine: str) -> None:
    """Nor does it lend the host's huge pages."""
    code = program(machine, read_only=False)

    def map_with(flags: int) -> int:
        return decide(code, machine, MMAP[machine], 0, 1 << 20, 3, flags)

    private, shared, without_file, huge = mmap.MAP_PRIVATE, mmap.MAP_SHARED, mmap.MAP_ANONYMOUS, 0x40000
    for flags in (private, shared, private | without_file, private | mmap.MAP_DENYWRITE):
        assert map_with(flags) == ALLOW
    validated = 3
    for flags in (
        shared | without_file,
        validated | without_file,
        private | huge,
        private | without_file | huge,
    ):
        assert map_with(flags) == fail(errno.EPERM)


@machines
def test_filter_keeps_the_limit_on_core_dumps(machine: str) -> None:
    """It may be read, and every other limit be set; the address of a new value may end with zeros."""
    code = program(machine, read_only=False)
    core, others = resource.RLIMIT_CORE, (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_AS)
    for new in (0x7FFF1234, 1 << 32):
        assert decide(code, machine, PRLIMIT[machine], 0, core, new, 0) == fail(errno.EPERM)
        assert {decide(code, machine, PRLIMIT[machine], 0, other, new, 0) for other in others} == {ALLOW}
    assert decide(code, machine, PRLIMIT[machine], 0, core, 0, 0x7FFF1234) == ALLOW
    assert decide(code, machine, SETRLIMIT[machine], core, 0x7FFF1234) == fail(errno.EPERM)
    assert decide(code, machine, SETRLIMIT[machine], resource.RLIMIT_NOFILE, 0x7FFF1234) == ALLOW


@machines
def test_filter_knows_no_other_architecture(machine: str) -> None:
    code = program(machine, read_only=False)
    (other,) = set(MACHINES) - {machine}
    assert decide(code, other, 1) == KILL
    if machine == "x86_64":
        assert decide(code, machine, X32_BIT | 165) == fail(errno.ENOSYS)


@machines
def test_filter_has_no_call_twice(machine: str) -> None:
    numbers = [pair[MACHINES.index(machine)] for pair in DENIED.values()]
    assert len({n for n in numbers if n >= 0}) == len([n for n in numbers if n >= 0])
