"""The warm, trusted process: it imports the libraries once and forks one worker per run.

It never runs agents' code and never reads their files or output; it only hands descriptors on.
So the memory that a worker inherits holds nothing of another episode. One thread, one poll loop.
Requests and replies are JSON datagrams on the control socket, descriptors travel beside them.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import linux, pages, watchdog, worker
from .isolation import Isolation, Namespaces, Uids

MAX_MESSAGE_BYTES = 1 << 16
MAX_FDS = 64
WATCH_INTERVAL_S = 0.05
START_TIMEOUT_S = 30.0
MAX_SHARING, LOOK_FACTOR = 16, 20
"""A run whose processes seem to hold this many times its memory, beyond what they inherited, is stopped
without an exact look; after a look comes a pause of this many times its length."""

EARLY_S, LOOK_S, GRACE_S = 0.002, 2e-5, 5.0
"""How long, and how often, we look at a worker that said that it ends; and how long it may take where others
need the processor, before it is killed."""

REHEARSAL = 0
"""The number of a run that nobody asked for, and nobody is told of: the owner's numbers begin with 1."""


@dataclass(eq=False)
class Step:
    """A worker, waiting (a spare) or running, and what belongs to its run."""

    pid: int
    init: int
    """The process that all others of the run die with, or 0."""
    channel: socket.socket
    pid_fd: int
    init_fd: int
    run: int = -1
    key: int = 0
    limits: dict[str, Any] = field(default_factory=dict)
    first_word: str | None = None
    started: float = 0.0
    deadline: float = math.inf
    next_look: float = 0.0
    status: int | None = None
    limit: str | None = None


class Zygote:
    """Workspaces, spares and runs; `serve` never returns."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.control = socket.socket(fileno=config["control_fd"])
        self.num_spares = 0
        self.isolation: Isolation
        if config["isolation"] == "namespaces":
            self.isolation = Namespaces(many_uids=config["many_uids"])
        else:
            self.isolation = Uids()
            # Whatever a run leaves becomes our child when its parent dies.
            linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        self.setting = worker.Setting(
            memory_baseline=watchdog.private_bytes(),
            isolation=self.isolation,
        )
        self.touched: pages.Ranges = array("Q")
        self.container_bytes = watchdog.container_bytes()
        self.spares: list[Step] = []
        self.running: dict[int, Step] = {}
        self.dying: list[Step] = []
        self.by_fd: dict[int, Step] = {}
        self.poll = select.poll()
        self.poll.register(self.control, select.POLLIN)
        self.next_watch = 0.0

    def serve(self) -> None:
        """Answer requests, watch runs and keep spares ready, until the owner hangs up."""
        self.container_bytes = watchdog.container_bytes()
        self.reply({"op": "ready"})
        while True:
            self.turn()

    def turn(self) -> None:
        """Wait for the next thing to do, and do it."""
        wants_spare = len(self.spares) < self.num_spares and not self.running
        # A fork takes milliseconds: let a request that is already on its way go first.
        events = self.poll.poll(2 if wants_spare else self.wait_ms())
        if not events and wants_spare:
            self.add_spare()
        for fd, _ in events:
            if fd == self.control.fileno():
                self.read_request()
            elif fd in self.by_fd:
                self.on_event(self.by_fd[fd], fd)
        self.enforce_limits()
        self.bury()

    def add_spare(self) -> None:
        try:
            self.spares.append(self.fork_worker())
        except OSError:
            self.num_spares = 0  # a run that needs a worker will say why
        pages.make_own(self.touched)

    def wait_ms(self) -> int | None:
        if any(not step.init for step in self.dying):
            return 1  # nothing will tell when the last of them is dead
        if not self.running:
            return None
        until = min(self.next_watch, *(step.deadline for step in self.running.values()))
        return max(0, math.ceil((until - time.monotonic()) * 1000))

    def reply(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        socket.send_fds(self.control, [json.dumps(message).encode()], fds)

    def read_request(self) -> None:
        # Inherited by none of the programs that runs begin with.
        flags = socket.MSG_CMSG_CLOEXEC
        data, fds, _, _ = socket.recv_fds(self.control, MAX_MESSAGE_BYTES, MAX_FDS, flags)
        if not data:
            os._exit(0)  # the owner is gone; as first process of the namespace we take all along
        request = json.loads(data)
        try:
            getattr(self, "do_" + request["op"])(request, fds)
        except OSError as error:
            self.reply({"id": request["id"], "error": error.strerror or str(error)})
        finally:
            close_all(fds)

    def do_open(self, request: dict[str, Any], _: list[int]) -> None:
        """A new workspace; the reply carries its folders, for the owner to read and list."""
        number = request["workspace"]
        self.isolation.make(number, request["megabytes"], request["num_inodes"])
        folders = self.isolation.folders(number)
        try:
            self.reply({"id": request["id"]}, folders)
        finally:
            close_all(folders)

    def do_create(self, request: dict[str, Any], _: list[int]) -> None:
        """New files in a workspace that no agent has used yet; the reply carries them, open for writing."""
        path, uid = self.isolation.path(request["workspace"]), self.isolation.uid(request["workspace"])
        fds: list[int] = []
        try:
            for name in request["names"]:
                self.make_folders(request["workspace"], name)
                fds.append(os.open(f"{path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
                os.fchown(fds[-1], uid, uid)
            self.reply({"id": request["id"]}, fds)
        finally:
            close_all(fds)

    def do_show(self, request: dict[str, Any], _: list[int]) -> None:
        """A shared file in a workspace that no agent has used yet."""
        self.make_folders(request["workspace"], request["name"])
        self.isolation.show(request["workspace"], request["name"], request["target"])
        self.reply({"id": request["id"]})

    def make_folders(self, number: int, name: str) -> None:
        """Those that a new file lies in. They are the workspace's own, as it is."""
        folder, uid = self.isolation.path(number), self.isolation.uid(number)
        for part in name.split("/")[:-1]:
            folder += "/" + part
            if not os.path.isdir(folder):
                os.mkdir(folder, 0o755)
                os.chown(folder, uid, uid)

    def do_close(self, request: dict[str, Any], _: list[int]) -> None:
        self.isolation.remove(request["workspace"])
        self.reply({"id": request["id"]})

    def do_run(self, request: dict[str, Any], fds: list[int]) -> None:
        """Send a worker on its way. `fds`: code, stdout, stderr, report. The reply comes at its death."""
        number = request["workspace"]
        order = {key: request[key] for key in ("limits", "read_only")}
        order |= {"uid": self.isolation.uid(number), "shown": self.isolation.shown(number)}
        trees = self.isolation.trees(number)
        try:
            step = self.spares.pop() if self.spares else self.fork_worker()
            step.run, step.limits = request["id"], request["limits"]
            step.key = self.isolation.key(number, step.init)
            step.deadline = time.monotonic() + START_TIMEOUT_S
            if not self.running:
                self.next_watch = time.monotonic() + WATCH_INTERVAL_S
            self.running[step.run] = step
            self.send_off(step, order, [*fds, *trees])
        finally:
            close_all(trees)

    def send_off(self, step: Step, order: dict[str, Any], fds: list[int]) -> None:
        try:
            socket.send_fds(step.channel, [json.dumps(order).encode()], fds)
        except (BrokenPipeError, ConnectionResetError):
            pass  # A spare may have died while it waited; its death is then an event of its own.
        except OSError:
            del self.running[step.run]  # the caller is told at once
            self.kill(step)
            raise

    def do_kill(self, request: dict[str, Any], _: list[int]) -> None:
        step = self.running.get(request["run"])
        if step is not None:
            self.stop(step, request["limit"])

    def fork_worker(self) -> Step:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        step = Step(0, 0, ours, -1, -1)
        try:
            step.init = self.isolation.before_fork()
            if step.init:
                step.init_fd = os.pidfd_open(step.init)
            step.pid = os.fork()
            if step.pid == 0:
                worker.main(theirs, self.setting)
            step.pid_fd = os.pidfd_open(step.pid)
        except OSError:
            for pid in filter(None, (step.pid, step.init)):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            close_all(fd for fd in (step.pid_fd, step.init_fd) if fd >= 0)
            ours.close()
            raise
        finally:
            self.isolation.after_fork()
            theirs.close()
        for fd in (step.pid_fd, step.init_fd, ours.fileno()):
            if fd >= 0:
                self.by_fd[fd] = step
                self.poll.register(fd, select.POLLIN)
        return step

    def stop(self, step: Step, limit: str | None) -> None:
        if step.status is None and step.limit is None:
            step.limit = limit
        step.deadline = math.inf
        self.kill(step)

    def kill(self, step: Step) -> None:
        # Where init_fd or pid_fd is -1, that process id may be somebody else's by now; and after the
        # answer the next run of the same workspace may have begun.
        if step.init_fd >= 0 or (not step.init and step.run in self.running):
            self.isolation.kill_all(step.key, step.init, self.workers())
        if step.pid_fd >= 0:
            os.kill(step.pid, signal.SIGKILL)

    def workers(self) -> set[int]:
        """Process ids that wait, run, or have not been reaped yet."""
        return {step.pid for step in self.by_fd.values() if step.pid_fd >= 0}

    def enforce_limits(self) -> None:
        now = time.monotonic()
        for step in self.running.values():
            if now >= step.deadline:
                self.stop(step, "time")
        if now < self.next_watch or not self.running:
            return
        inits = {step.init for step in self.running.values()}
        keys = {step.key for step in self.running.values()}
        usage = watchdog.usage(keys, self.isolation.key_of, inits, self.workers())
        for step in self.running.values():
            used = usage[step.key]
            if used.num_tasks >= step.limits["processes"]:
                self.stop(step, "processes")
            elif self.takes_too_much(step, used):
                self.stop(step, "memory")
        self.next_watch = time.monotonic() + WATCH_INTERVAL_S

    def takes_too_much(self, step: Step, used: watchdog.Usage) -> bool:
        """The exact look walks page tables, in our only thread: it gets a small share of the time."""
        memory_bytes, now = step.limits["memory_bytes"], time.monotonic()
        if used.resident_bytes - used.inherited_bytes > MAX_SHARING * memory_bytes:
            return True
        if used.resident_bytes <= memory_bytes or now < step.next_look:
            return False
        exact = used.exact_bytes(self.container_bytes)
        step.next_look = now + LOOK_FACTOR * (time.monotonic() - now)
        return bool(exact > memory_bytes)

    def on_event(self, step: Step, fd: int) -> None:
        """A worker spoke, a worker died, or its init did, which dies only after all others in there."""
        if fd == step.channel.fileno():
            self.hear(step)
            return
        self.forget(fd)
        os.close(fd)
        if fd == step.pid_fd:
            status = os.waitstatus_to_exitcode(os.waitpid(step.pid, 0)[1])
            step.status = status if step.status is None else step.status
            step.pid_fd = -1
            self.kill(step)
            self.dying.append(step)
        else:
            os.waitpid(step.init, 0)
            step.init_fd = -1

    def bury(self) -> None:
        """Finish those of whom nothing lives."""
        for step in list(self.dying):
            if step.init_fd >= 0:
                continue
            if not step.init and step.run in self.running:
                self.isolation.kill_all(step.key, 0, self.workers())
                if watchdog.pids_of(step.key, self.isolation.key_of):
                    continue
            self.dying.remove(step)
            self.finish(step)

    def forget(self, fd: int) -> None:
        if self.by_fd.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def hear(self, step: Step) -> None:
        """Its first word comes before the code's first: from here on the clock runs. Its second says
        that it ends now, or is the code's own; then it ends, too."""
        try:
            word = step.channel.recv(4096, socket.MSG_DONTWAIT).decode("ascii", "replace")
        except OSError:
            word = ""
        if step.first_word is None:
            step.first_word = word
            if word == worker.STARTED:
                if step.run != REHEARSAL:
                    self.num_spares = 1  # whatever kept the last one from waiting is over
                step.started = time.monotonic()
                step.deadline = step.started + step.limits["time_s"]
                return
        self.forget(step.channel.fileno())
        if step.first_word == worker.STARTED and word and step.status is None and step.limit is None:
            self.end_early(step, word)

    def end_early(self, step: Step, word: str) -> None:
        """Answer as soon as nothing of the run can act any more; freeing its memory takes longer.

        Where the worker takes its time, or leaves something behind, the answer comes when all are dead.
        """
        until = time.monotonic() + EARLY_S
        while not watchdog.is_ending(step.pid):
            if time.monotonic() > until:
                step.deadline = min(step.deadline, until + GRACE_S)
                return
            # To yield is not enough: on the same core the kernel may take up to 2 ms to let the worker go on.
            time.sleep(LOOK_S)
        if word.isdigit() and self.is_alone(step) and self.is_alone(step):
            step.status = int(word[:3]) & 255
            self.answer(step)
        self.kill(step)

    def is_alone(self, step: Step) -> bool:
        """One look may miss a process that is handing over to its child: ask twice."""
        known = {os.getpid(), step.init, *self.workers()}
        return all(pid in known or self.isolation.key_of(pid) != step.key for pid in watchdog.all_pids())

    def finish(self, step: Step) -> None:
        """All of it is dead."""
        if step.channel.fileno() in self.by_fd:
            self.hear(step)
            self.forget(step.channel.fileno())
        step.channel.close()
        if step in self.spares:
            self.spares.remove(step)
            self.num_spares = 0  # it could not even wait: let a run say why
        self.answer(step)

    def answer(self, step: Step) -> None:
        """Once for every run."""
        if step.run not in self.running:
            return
        del self.running[step.run]
        answer: dict[str, Any] = {"id": step.run, "exit_code": step.status, "limit": step.limit}
        now = time.monotonic()
        answer["duration_s"] = max(0.0, now - (step.started or now))
        if step.first_word != worker.STARTED:
            answer["error"] = f"a worker did not start: {step.first_word or f'exit code {step.status}'}"
        if step.run != REHEARSAL:
            self.reply(answer)


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
