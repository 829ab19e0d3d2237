"""The warm, trusted process: it imports the libraries once and forks one worker per run.

It never runs agents' code and never reads their files or output; it only hands descriptors on.
So the memory that a worker inherits holds nothing of another episode. One thread, one poll loop.
Requests and replies are JSON datagrams on the control socket, descriptors travel beside them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import math
import os
import pickle
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from . import linux, watchdog, worker

MAX_MESSAGE_BYTES = 1 << 16
MAX_FDS = 64
WATCH_INTERVAL_S = 0.05
START_TIMEOUT_S = 30.0
INIT = ("/opt/bin/init", "2147483647")
"""`sleep`, the first process of each run's pid namespace: killing it kills all the others."""


@dataclass(eq=False)
class Step:
    """A worker and its pid namespace, waiting (a spare) or running."""

    pid: int
    init: int
    channel: socket.socket
    pid_fd: int
    init_fd: int
    namespace: int
    run: int = -1
    limits: dict[str, Any] = field(default_factory=dict)
    first_word: str | None = None
    started: float = 0.0
    deadline: float = math.inf
    status: int | None = None
    limit: str | None = None

    def kill(self) -> None:
        # A descriptor of -1: reaped, and the process id may be somebody else's by now.
        if self.init_fd >= 0:
            os.kill(self.init, signal.SIGKILL)
        if self.pid_fd >= 0:
            os.kill(self.pid, signal.SIGKILL)


class Zygote:
    """Workspaces, spares and runs; `serve` never returns."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.control = socket.socket(fileno=config["control_fd"])
        self.num_spares: int = config["num_spares"]
        self.many_uids: bool = config["many_uids"]
        self.own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self.setting = worker.Setting(
            environment=config["environment"],
            memory_baseline=watchdog.private_bytes(),
        )
        self.spares: list[Step] = []
        self.running: dict[int, Step] = {}
        self.by_fd: dict[int, Step] = {}
        self.poll = select.poll()
        self.poll.register(self.control, select.POLLIN)
        self.next_watch = 0.0

    def serve(self) -> None:
        """Answer requests, watch runs and keep spares ready, until the owner hangs up."""
        self.reply({"op": "ready"})
        while True:
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

    def add_spare(self) -> None:
        try:
            self.spares.append(self.fork_worker())
        except OSError:
            self.num_spares = 0  # a run that needs a worker will say why

    def wait_ms(self) -> int | None:
        if not self.running:
            return None
        until = min(self.next_watch, *(step.deadline for step in self.running.values()))
        return max(0, math.ceil((until - time.monotonic()) * 1000))

    def reply(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.control, [json.dumps(message).encode()], fds)

    def read_request(self) -> None:
        data, fds, _, _ = socket.recv_fds(self.control, MAX_MESSAGE_BYTES, MAX_FDS)
        if not data:
            os._exit(0)  # the owner is gone; as first process of the namespace we take all along
        request = json.loads(data)
        try:
            getattr(self, "do_" + request["op"])(request, fds)
        except OSError as error:
            self.reply({"id": request["id"], "error": error.strerror or str(error), "errno": error.errno})
        finally:
            for fd in fds:
                os.close(fd)

    def do_open(self, request: dict[str, Any], _: list[int]) -> None:
        """A new workspace; the reply carries its folder, for the owner to read and list."""
        path, uid = self.place(request)
        os.mkdir(path, 0o700)
        size = f"size={request['megabytes']}m,nr_inodes={request['num_inodes']},mode=700,uid={uid},gid={uid}"
        linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, size)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.reply({"id": request["id"]}, (fd,))
        finally:
            os.close(fd)

    def do_create(self, request: dict[str, Any], _: list[int]) -> None:
        """New files in a workspace that no agent has used yet; the reply carries them, open for writing."""
        path, uid = self.place(request)
        fds: list[int] = []
        try:
            for name in request["names"]:
                folder = path
                for part in name.split("/")[:-1]:
                    folder += "/" + part
                    if not os.path.isdir(folder):
                        os.mkdir(folder, 0o755)
                        os.chown(folder, uid, uid)
                fds.append(os.open(f"{path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
                os.fchown(fds[-1], uid, uid)
            self.reply({"id": request["id"]}, tuple(fds))
        finally:
            for fd in fds:
                os.close(fd)

    def do_close(self, request: dict[str, Any], _: list[int]) -> None:
        path, _uid = self.place(request)
        linux.umount(path)
        os.rmdir(path)
        self.reply({"id": request["id"]})

    def do_run(self, request: dict[str, Any], fds: list[int]) -> None:
        """Send a worker on its way. `fds`: code, stdout, stderr, report. The reply comes at its death."""
        path, uid = self.place(request)
        order = {"limits": request["limits"], "read_only": request["read_only"], "uid": uid}
        tree = linux.clone_mount(path)
        try:
            step = self.spares.pop() if self.spares else self.fork_worker()
            step.run, step.limits = request["id"], request["limits"]
            step.deadline = time.monotonic() + START_TIMEOUT_S
            if not self.running:
                self.next_watch = time.monotonic() + WATCH_INTERVAL_S
            self.running[step.run] = step
            # A spare may have died while it waited; its death is then an event of its own.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(step.channel, [json.dumps(order).encode()], [*fds, tree])
        finally:
            os.close(tree)

    def do_kill(self, request: dict[str, Any], _: list[int]) -> None:
        step = self.running.get(request["run"])
        if step is not None:
            self.stop(step, request["limit"])

    def place(self, request: dict[str, Any]) -> tuple[str, int]:
        """Path and owner of a workspace: a uid of its own where there are many."""
        number = int(request["workspace"])
        return f"/ws/{number}", number if self.many_uids else 0

    def fork_worker(self) -> Step:
        """A worker as the second process of a new pid namespace, its first being a sleeping init."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        linux.unshare(linux.CLONE_NEWPID, "pid")
        init = 0
        try:
            init = os.posix_spawn(INIT[0], INIT, self.setting.environment)
            pid = os.fork()
            if pid == 0:
                worker.main(theirs, self.setting)
        except OSError:
            if init:
                os.kill(init, signal.SIGKILL)
                os.waitpid(init, 0)
            raise
        finally:
            # Our next children must not land in a namespace whose init is somebody else's.
            linux.setns(self.own_pid_namespace, linux.CLONE_NEWPID)
        theirs.close()
        namespace = watchdog.pid_namespace(init)
        step = Step(pid, init, ours, os.pidfd_open(pid), os.pidfd_open(init), namespace)
        for fd in (step.pid_fd, step.init_fd, ours.fileno()):
            self.by_fd[fd] = step
            self.poll.register(fd, select.POLLIN)
        return step

    def stop(self, step: Step, limit: str | None) -> None:
        if step.status is None and step.limit is None:
            step.limit = limit
        step.deadline = math.inf
        step.kill()

    def enforce_limits(self) -> None:
        now = time.monotonic()
        for step in self.running.values():
            if now >= step.deadline:
                self.stop(step, "time")
        if now < self.next_watch or not self.running:
            return
        usage = watchdog.usage({step.namespace: step.init for step in self.running.values()})
        for step in self.running.values():
            used = usage[step.namespace]
            memory_bytes = step.limits["memory_bytes"]
            if used.num_tasks >= step.limits["processes"]:
                self.stop(step, "processes")
            elif used.resident_bytes > memory_bytes and used.exact_bytes() > memory_bytes:
                self.stop(step, "memory")
        self.next_watch = time.monotonic() + WATCH_INTERVAL_S

    def on_event(self, step: Step, fd: int) -> None:
        """A worker spoke, a worker died, or its init did, which dies only after all others in there."""
        self.poll.unregister(fd)
        del self.by_fd[fd]
        if fd == step.channel.fileno():
            self.hear(step)
            return
        os.close(fd)
        if fd == step.pid_fd:
            step.status = os.waitstatus_to_exitcode(os.waitpid(step.pid, 0)[1])
            step.pid_fd = -1
            step.kill()
        else:
            os.waitpid(step.init, 0)
            step.init_fd = -1
        if step.pid_fd == step.init_fd == -1:
            self.finish(step)

    def hear(self, step: Step) -> None:
        """The worker's only words come before the code's first: from here on the clock runs."""
        step.first_word = step.channel.recv(4096).decode()
        if step.first_word == worker.STARTED:
            step.started = time.monotonic()
            step.deadline = step.started + step.limits["time_s"]

    def finish(self, step: Step) -> None:
        now = time.monotonic()
        if self.by_fd.pop(step.channel.fileno(), None):
            self.poll.unregister(step.channel)
            self.hear(step)
        step.channel.close()
        if step in self.spares:
            self.spares.remove(step)
            self.num_spares = 0  # it could not even wait: let a run say why
        if self.running.pop(step.run, None) is None:
            return
        answer: dict[str, Any] = {"id": step.run, "exit_code": step.status, "limit": step.limit}
        answer["duration_s"] = max(0.0, now - (step.started or now))
        if step.first_word != worker.STARTED:
            answer["error"] = f"a worker did not start: {step.first_word or f'exit code {step.status}'}"
        self.reply(answer)


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


def collapse_pages() -> None:
    """Huge pages for what workers inherit: each fork then copies a fraction of the page table."""
    with open("/proc/self/maps", encoding="ascii") as file:
        lines = [line.split() for line in file]
    for fields in lines:
        anonymous = fields[1].startswith("rw-p") and (len(fields) == 5 or fields[5] == "[heap]")
        start, end = (int(address, 16) for address in fields[0].split("-"))
        if anonymous:
            linux.collapse(start, end)


def main() -> None:
    """Import, settle, serve."""
    config = json.loads(sys.argv[1])
    gc.disable()
    try:
        for name in config["imports"]:
            importlib.import_module(name)
        warm_up()
        if len(os.listdir("/proc/self/task")) != 1:
            raise ImportError("a library started a thread, which forked workers cannot have")
    except ImportError as error:
        with socket.socket(fileno=config["control_fd"]) as control:
            control.send(json.dumps({"op": "failed", "errno": 0, "error": f"import: {error}"}).encode())
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(config["control_fd"], False)
    zygote = Zygote(config)
    gc.enable()
    gc.collect()
    collapse_pages()
    # What lives now stays: collecting it in workers would copy all its pages.
    gc.freeze()
    zygote.serve()
