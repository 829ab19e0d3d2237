"""The system-call filter of a worker: a deny list of what reaches beyond its namespaces.

Workers hold no capability, so most of these would fail anyway; the filter keeps the kernel's
lesser-used code, and memory that no limit counts (memfd, shared memory without a file), out of reach.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import struct

from .linux import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    CLONE_PARENT,
    PR_SET_SECCOMP,
    check,
    prctl,
)

# name: (x86_64, aarch64); -1 where the architecture has no such call.
DENIED = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "fanotify_init": (300, 262),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266), "sethostname": (170, 161), "setdomainname": (171, 162),
    "iopl": (172, -1), "ioperm": (173, -1), "modify_ldt": (154, -1), "uselib": (134, -1),
    "vhangup": (153, 58), "personality": (135, 92), "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "shmctl": (31, 195), "shmat": (30, 196), "shmdt": (67, 197),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    # What they keep counts as nobody's: pages that are mapped no more, and rules without end.
    "vmsplice": (278, 75), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    # All runs of a sandbox share one (empty) network namespace, in which names reach others.
    "socket": (41, 198), "bind": (49, 200), "connect": (42, 203), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242),
    # Counted for the whole machine or for whoever started us; and buffers beyond the usual size.
    "io_setup": (206, 0), "io_submit": (209, 2), "inotify_init": (253, -1), "inotify_init1": (294, 26),
    "setsockopt": (54, 208),
}  # fmt: skip

WRITING = {
    "creat": (85, -1), "open": (2, -1), "truncate": (76, 45), "unlink": (87, -1), "unlinkat": (263, 35),
    "rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276), "mkdir": (83, -1),
    "mkdirat": (258, 34), "rmdir": (84, -1), "link": (86, -1), "linkat": (265, 37), "symlink": (88, -1),
    "symlinkat": (266, 36), "mknod": (133, -1), "mknodat": (259, 33), "chmod": (90, -1),
    "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, -1),
    "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54), "utime": (132, -1), "utimes": (235, -1),
    "futimesat": (261, -1), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "openat2": (437, 437), "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469),
}  # fmt: skip
"""What else an inspector may not do: change files. `openat` it may, for reading."""

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE = {"x86_64": 56, "aarch64": 220}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
OPENAT = {"x86_64": 257, "aarch64": 56}
MMAP = {"x86_64": 9, "aarch64": 222}
PRLIMIT = {"x86_64": 302, "aarch64": 261}
SETRLIMIT = {"x86_64": 160, "aarch64": 164}
CLONE3 = 435
X32_BIT = 0x40000000
NEW_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)
REFUSED_CLONES = NEW_NAMESPACES | CLONE_PARENT
"""With CLONE_PARENT a worker would give the zygote a child that it never waits for, which would keep the
run's init, and so the run, from ending."""

_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NUMBER_OFFSET, _ARCH_OFFSET = 0, 4
_FIRST_ARGUMENT_OFFSET, _SECOND_ARGUMENT_OFFSET, _THIRD_ARGUMENT_OFFSET = 16, 24, 32
_FOURTH_ARGUMENT_OFFSET, _HIGH_HALF = 40, 4
_AF_UNIX, _SOCK_TYPE_MASK, _SOCK_STREAM = 1, 0xF, 1
_SHARED_WITHOUT_FILE, _MAP_HUGETLB = 0x21, 0x40000
_RLIMIT_CORE = 4
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _fail(number: int) -> bytes:
    return _instruction(_RETURN, 0x50000 | number)


@functools.cache
def program(machine: str, *, read_only: bool) -> bytes:
    """The filter as BPF for `machine` ("x86_64" or "aarch64"; `KeyError` otherwise)."""
    actions = _actions(machine, read_only=read_only)
    ranges: list[tuple[int, bytes]] = []
    for number in sorted({0, *actions, *(number + 1 for number in actions)}):
        action = actions.get(number, _instruction(_RETURN, _ALLOW))
        if not ranges or ranges[-1][1] != action:
            ranges.append((number, action))
    if machine == "x86_64":
        ranges.append((X32_BIT, _fail(errno.ENOSYS)))
    head = [
        _instruction(_LOAD, _ARCH_OFFSET),
        _instruction(_IF_EQUAL, AUDIT_ARCH[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_OFFSET),
    ]
    return b"".join(head) + _search(ranges)


def _search(ranges: list[tuple[int, bytes]]) -> bytes:
    """A binary search: the kernel walks a new filter once for every call there is, which takes as long as
    the rest of locking in when it is a list. `ranges`: from which number on what is done."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    return _instruction(_IF_AT_LEAST, ranges[middle][0], len(below) // 8, 0) + below + above


def _actions(machine: str, *, read_only: bool) -> dict[int, bytes]:
    """Call number → what is done about it, where that is not just to allow it."""
    column = list(AUDIT_ARCH).index(machine)
    denied = DENIED | WRITING if read_only else DENIED
    actions = {numbers[column]: _fail(errno.EPERM) for numbers in denied.values() if numbers[column] >= 0}
    allow, deny = _instruction(_RETURN, _ALLOW), _fail(errno.EPERM)
    actions |= _by_arguments(machine, allow, deny)
    if read_only:
        writes = _instruction(_LOAD, _THIRD_ARGUMENT_OFFSET) + _instruction(_IF_ANY_BIT, _FOR_WRITING, 0, 1)
        actions[OPENAT[machine]] = writes + deny + allow
    # Its flags lie behind a pointer that a filter cannot read; libc falls back to clone.
    actions[CLONE3] = _fail(errno.ENOSYS)
    return actions


def _by_arguments(machine: str, allow: bytes, deny: bytes) -> dict[int, bytes]:
    """The calls of which some uses are denied, whatever else the worker may do."""
    first, second = _instruction(_LOAD, _FIRST_ARGUMENT_OFFSET), _instruction(_LOAD, _SECOND_ARGUMENT_OFFSET)
    fourth = _instruction(_LOAD, _FOURTH_ARGUMENT_OFFSET)
    # asyncio needs pairs. Datagram ones can get a name (SO_PASSCRED) and send to others' names; those of
    # another family would make the kernel load a module.
    pairs = first + _instruction(_IF_EQUAL, _AF_UNIX, 0, 4)
    pairs += second + _instruction(_AND, _SOCK_TYPE_MASK) + _instruction(_IF_EQUAL, _SOCK_STREAM, 0, 1)
    # Its pages stay when nobody maps them any more, so that looking at processes does not find them.
    maps = fourth + _instruction(_IF_ANY_BIT, _MAP_HUGETLB, 2, 0)
    maps += _instruction(_AND, _SHARED_WITHOUT_FILE) + _instruction(_IF_EQUAL, _SHARED_WITHOUT_FILE, 0, 1)
    # The worker's own value keeps crashes from starting the host's handler of core dumps; 0 would not.
    reads = _instruction(_IF_EQUAL, _RLIMIT_CORE, 0, 4) + _instruction(_LOAD, _THIRD_ARGUMENT_OFFSET)
    reads += _instruction(_IF_EQUAL, 0, 0, 3) + _instruction(_LOAD, _THIRD_ARGUMENT_OFFSET + _HIGH_HALF)
    reads += _instruction(_IF_EQUAL, 0, 0, 1)
    return {
        CLONE[machine]: first + _instruction(_IF_ANY_BIT, REFUSED_CLONES, 0, 1) + deny + allow,
        SOCKETPAIR[machine]: pairs + allow + deny,
        MMAP[machine]: maps + deny + allow,
        PRLIMIT[machine]: second + reads + allow + deny,
        SETRLIMIT[machine]: first + _instruction(_IF_EQUAL, _RLIMIT_CORE, 0, 1) + deny + allow,
    }


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def make_ready() -> None:
    """Build both filters now, so that forked children find them built."""
    for read_only in (False, True):
        program(platform.machine(), read_only=read_only)


def load(*, read_only: bool) -> None:
    """Put the filter on this process and all its children, for good (needs no_new_privs)."""
    code = program(platform.machine(), read_only=read_only)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = _Program(len(code) // 8, ctypes.addressof(buffer))
    mode_filter = 2
    check(prctl(PR_SET_SECCOMP, mode_filter, ctypes.addressof(header)), "seccomp")
