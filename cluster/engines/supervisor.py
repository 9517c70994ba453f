"""The program between an actor and its engine: nothing it started outlives it or the actor.

    python -I -S supervisor.py

It needs only the standard library of Python 3.8 or later, so that any interpreter can run it, and
one thread, because PR_SET_PDEATHSIG fires when the thread that forked ends. It is a subreaper:
whoever is orphaned below it becomes its child, also after setsid or a double fork, so the tree is
gone exactly when it has no child left.

In, one JSON object a line: first the order, then commands. The end of the input means that the
actor is gone.

    {"argv": [...], "env": {...}, "cwd": null, "log": path, "log_max_bytes": n, "log_backups": n,
     "grace_s": s}              env is complete; grace_s: between TERM and KILL
    {"stop": grace_s}           TERM for the child, then for what it left; KILL after grace_s

Out, one JSON object a line; lines and progress are dropped while nobody reads:

    {"started": pid}  {"failed": why}  {"exited": code, or minus the signal}
    {"line": text}    {"progress": text that a carriage return ended}    {"dropped": count}

The log file receives every byte. The exit code is the child's, or 128 + its signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

TREE_ID = "RAYSCEND_TREE_ID"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_CHUNK = 1 << 16
_LINE_BYTES = 1 << 13  # of one line, as forwarded
_WAITING_BYTES = 1 << 18  # of unread output, before lines are dropped
_DRAIN_CHUNKS = 64  # read at most, before an exit is told
_ACTOR_POLL_S = 0.5
_KILL_PERIOD_S = 0.05
_FLUSH_S = 1.0
# A carriage return overwrites a line (progress bars) unless a newline follows it.
_LINE_END = re.compile(rb"\r?\n|\r(?=[^\n])")


def processes_of(tree_id: str) -> list[int]:
    """Process ids of all that carry `tree_id` in their environment, and of their descendants.

    Leaves out zombies, the caller, and processes of other users. SPT_NOENV=1 must be in the
    environment too: setproctitle otherwise writes its titles over /proc/PID/environ.
    """
    mark = b"\0%s=%s\0" % (TREE_ID.encode(), tree_id.encode())
    return _family(lambda pid: mark in b"\0" + _read(f"/proc/{pid}/environ"))


def end_processes(tree_id: str, grace_s: float = 0.0, limit_s: float = 5.0) -> list[int]:
    """End all `processes_of(tree_id)`: TERM, `grace_s` later KILL. Blocks until they are gone.

    Returns the processes that even KILL did not end within `limit_s` (a driver holds them).
    """
    started = time.monotonic()
    left = processes_of(tree_id)
    _send(signal.SIGTERM, left)
    while left and time.monotonic() < started + grace_s + limit_s:
        if time.monotonic() >= started + grace_s:
            _send(signal.SIGKILL, left)
        time.sleep(_KILL_PERIOD_S)
        left = processes_of(tree_id)
    return left


def _descendants() -> list[int]:
    me = os.getpid()
    return _family(lambda pid: pid == me)


def _family(is_root: Callable[[int], bool]) -> list[int]:
    """Process ids of all roots and their descendants, without the caller and without zombies."""
    children: dict[int, list[int]] = {}
    zombies = {os.getpid()}
    todo = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        # The name in brackets may hold anything, brackets and spaces too.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        if not fields:
            continue
        children.setdefault(int(fields[1]), []).append(pid)
        if fields[0] in b"ZX":
            zombies.add(pid)
        if is_root(pid):
            todo.append(pid)
    found = set()
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return sorted(found - zombies)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:  # it ended meanwhile, or is another user's
        return b""


def _send(signum: int, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


class RotatingLog:
    """A file of about `max_bytes` that makes way for a new one; `backups` old ones are kept.

    A full disk loses output, never the engine.
    """

    def __init__(self, path: str, max_bytes: int, backups: int) -> None:
        self._path, self._max_bytes, self._backups = path, max_bytes, backups
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if self._size + len(data) > self._max_bytes and self._size:
                line_end = data.find(b"\n") + 1
                self._file.write(data[:line_end])
                self._rotate()
                data = data[line_end:]
            self._file.write(data)
            self._size += len(data)

    def _rotate(self) -> None:
        for n in range(self._backups, 0, -1):
            newer = f"{self._path}.{n - 1}" if n > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(newer, f"{self._path}.{n}")
        full, self._file = self._file, open(self._path, "wb", buffering=0)  # noqa: SIM115
        full.close()
        self._size = 0


class LineSplitter:
    """Cuts a stream of bytes into lines of bounded length, whatever the bytes are."""

    def __init__(self) -> None:
        self._rest = b""
        self._cut = False

    def feed(self, data: bytes) -> list[tuple[str, str]]:
        """The ("line" or "progress", text) that `data` completes, blank ones left out."""
        found = []
        buffer, start = self._rest + data, 0
        for end in _LINE_END.finditer(buffer):
            kind = "line" if end.group().endswith(b"\n") else "progress"
            found += self._piece(kind, buffer[start : end.start()])
            start, self._cut = end.end(), False
        self._rest = buffer[start:]
        if self._cut or len(self._rest) > _LINE_BYTES:
            found += self._piece("line", self._rest)
            self._rest, self._cut = self._rest[-1:], True
        return found

    def finish(self) -> list[tuple[str, str]]:
        rest, self._rest = self._rest, b""
        return self._piece("line", rest)

    def _piece(self, kind: str, data: bytes) -> list[tuple[str, str]]:
        text = data[:_LINE_BYTES].decode("utf-8", "replace").rstrip()
        return [] if self._cut or not text else [(kind, text)]


class Outbox:
    """Messages to the client, written as far as it reads: it must never hold us up."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting = bytearray()
        self._dropped = 0
        os.set_blocking(fd, False)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def send(self, kind: str, value: object, droppable: bool = False) -> None:
        if droppable and len(self._waiting) > _WAITING_BYTES:
            self._dropped += 1
            return
        dropped, self._dropped = self._dropped, 0
        for message in ([{"dropped": dropped}] if dropped else []) + [{kind: value}]:
            self._waiting += json.dumps(message).encode() + b"\n"

    def flush(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting)]
        except BlockingIOError:
            pass
        except OSError:  # nobody will ever read
            self._waiting.clear()


class Supervisor:
    """One child and all its descendants, from the order until the last of them is gone."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()
        self._outbox = Outbox(1)
        self._lines = LineSplitter()
        self._input = b""
        self._actor: int = os.getppid()
        self._log: RotatingLog | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._output = -1
        self._code: int | None = None
        self._grace_s = 0.0
        self._kill_at: float | None = None
        self._signalled = False
        self._alone = True

    def run(self) -> int:
        """Serve until the tree is gone; return the exit code."""
        self._watch_signals()
        self._selector.register(0, selectors.EVENT_READ, self._read_input)
        while not (self._kill_at is not None and self._alone):
            for key, _ in self._selector.select(self._timeout()):
                key.data()
            self._reap()
            self._check()
            self._outbox.flush()
        self._finish()
        code = self._code or 0
        return 128 - code if code < 0 else code

    def _watch_signals(self) -> None:
        # A thread of the actor may have had signals blocked when it started us.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        self._selector.register(reader, selectors.EVENT_READ, lambda: os.read(reader, 4096))

    def _on_signal(self, *_: object) -> None:
        self._signalled = True

    def _timeout(self) -> float:
        if self._outbox:
            return _KILL_PERIOD_S
        if self._kill_at is None:
            return _ACTOR_POLL_S
        return min(_ACTOR_POLL_S, max(_KILL_PERIOD_S, self._kill_at - time.monotonic()))

    def _read_input(self) -> None:
        data = os.read(0, _CHUNK)
        if not data:
            self._selector.unregister(0)
            self._end(self._grace_s, everyone=True)
            return
        *lines, self._input = (self._input + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "argv" in message:
                self._start(message)
            else:
                self._end(message["stop"], everyone=self._code is not None)

    def _start(self, order: dict[str, Any]) -> None:
        self._grace_s = order["grace_s"]
        try:
            self._log = RotatingLog(order["log"], order["log_max_bytes"], order["log_backups"])
            self._child = subprocess.Popen(
                order["argv"],
                env=order["env"],
                cwd=order.get("cwd"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._code = 127
            self._outbox.send("failed", str(error))
            self._end(0, everyone=True)
            return
        assert self._child.stdout is not None
        self._output = self._child.stdout.fileno()
        os.set_blocking(self._output, False)
        self._selector.register(self._output, selectors.EVENT_READ, self._read_output)
        self._outbox.send("started", self._child.pid)

    def _read_output(self) -> bool:
        """Move one chunk of output on; False when there is none now."""
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return False
        assert self._log is not None
        self._log.write(data)
        for kind, text in self._lines.feed(data):
            self._outbox.send(kind, text, droppable=True)
        if not data and self._output in self._selector.get_map():
            self._selector.unregister(self._output)
        return bool(data)

    def _drain(self) -> None:
        """Move on what is there already; a descendant may go on writing, hence the bound."""
        if self._child is not None:
            any(not self._read_output() for _ in range(_DRAIN_CHUNKS))
        for kind, text in self._lines.finish():
            self._outbox.send(kind, text, droppable=True)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._alone = True
                return
            self._alone = False
            if not pid:
                return
            if self._child is not None and pid == self._child.pid:
                signalled = os.WIFSIGNALED(status)
                self._code = -os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status)
                self._child.returncode = self._code  # Popen has nothing left to wait for
                self._drain()
                self._outbox.send("exited", self._code)
                self._outbox.flush()
                self._end(self._grace_s, everyone=True)

    def _check(self) -> None:
        """Look at what no file descriptor tells: our parent, our signals, the time."""
        # A child that the actor forked without exec may still hold our input open.
        if self._actor and os.getppid() != self._actor:
            self._actor = 0
            self._end(self._grace_s, everyone=True)
        if self._signalled:
            self._signalled = False
            self._end(self._grace_s, everyone=self._code is not None)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            _send(signal.SIGKILL, _descendants())

    def _end(self, grace_s: float, everyone: bool) -> None:
        """Send TERM to every descendant, or first to the child alone, which knows its own.

        KILL follows after `grace_s`, or earlier where an earlier end said so.
        """
        kill_at = time.monotonic() + grace_s
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        if everyone or self._child is None:
            _send(signal.SIGTERM, _descendants())
        else:
            _send(signal.SIGTERM, [self._child.pid])

    def _finish(self) -> None:
        """Hand on the last output, to a reader that still reads."""
        self._drain()
        give_up_at = time.monotonic() + _FLUSH_S
        self._outbox.flush()
        while self._outbox and time.monotonic() < give_up_at:
            time.sleep(_KILL_PERIOD_S)
            self._outbox.flush()


def _die_with(parent: int) -> Callable[[], None]:
    """What a forked child runs before exec, so that a SIGKILL of `parent` reaches it."""
    prctl = ctypes.CDLL(None).prctl

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before that
            os._exit(1)

    return in_child


def main() -> int:
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")
    return Supervisor().run()


if __name__ == "__main__":
    sys.exit(main())
