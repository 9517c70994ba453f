"""A server to be measured: a command with a Ray of its own, and the CPU time of its processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from cluster.ports import free_port

ROOT = Path(__file__).parents[2]
OTHER = "Ray, other"

Roles = Mapping[str, Callable[[psutil.Process], bool]]
"""The roles that matter, with the way to know their processes; the first that fits counts."""

RAYSCEND_ROLES: Roles = {
    "gateway": lambda process: "default:Gateway" in command_of(process),
    "HAProxy": lambda process: "haproxy" in process.name(),
    "engine": lambda process: "RAYSCEND_TREE_ID" in process.environ(),
}

CpuSeconds = Mapping[str, float]
"""User and system time, by role."""


class Server:
    """Starts with its `with` block and is gone after it, with all of its processes.

    Args:
        command: what to run, from the root of the repository.
        roles: what its processes are called in `cpu_seconds`.
        environment: added to ours, out of which Ray's variables are taken.
    """

    def __init__(
        self, command: Sequence[str], roles: Roles, environment: Mapping[str, str] | None = None
    ) -> None:
        self._roles = roles
        self._folder = tempfile.mkdtemp(prefix="rs-", dir="/tmp")
        self._console = Path(self._folder, "console")
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "RAYSCEND_"))}
        places = {"TMPDIR": self._folder, "RAY_TMPDIR": self._folder, "RAY_AUTH_MODE": "disabled"}
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=ours | places | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=self._console.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Server:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `__exit__` is reached
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for process in self._processes():
            process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def hears(self, pattern: str, within_s: float = 300) -> str:
        """Wait until the console matches `pattern`; return its first group."""
        deadline = time.monotonic() + within_s
        while not (match := re.search(pattern, text := self._console.read_text(errors="replace"))):
            if self._process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{self._process.args!r} never said {pattern!r}:\n{text[-4000:]}")
            time.sleep(0.2)
        return match[1]

    def cpu_seconds(self) -> CpuSeconds:
        """User and system time so far, by role; of processes that live now."""
        seconds: dict[str, float] = defaultdict(float)
        for process in self._processes():
            try:
                role = next((role for role, fits in self._roles.items() if fits(process)), OTHER)
                times = process.cpu_times()
            except psutil.Error:
                continue
            seconds[role] += times.user + times.system
        return seconds

    def pid_of(self, role: str) -> int:
        """The first process in `role`."""
        return next(process.pid for process in self._processes() if self._roles[role](process))

    def commands_of(self, role: str) -> str:
        """The command lines of all processes in `role`, the supervisor's among an engine's."""
        fits = self._roles[role]
        return "\n".join(command_of(process) for process in self._processes() if fits(process))

    def _processes(self) -> list[psutil.Process]:
        """All that were started, however indirectly: they know our temporary folder."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("RAY_TMPDIR") == self._folder:
                    found.append(process)
            except psutil.Error:
                continue
        return found


def rayscend(*args: str, environment: Mapping[str, str] | None = None) -> Server:
    """`serve run app:deploy` with `args`, on a free port."""
    command = [sys.executable, "-m", "ray.serve.scripts", "run", "app:deploy"]
    return Server([*command, f"http_port={free_port()}", *args], RAYSCEND_ROLES, environment)


def rayscend_urls(server: Server) -> tuple[str, str]:
    """Wait until it is ready; return the URL of its engine, and the one that clients use."""
    front = server.hears(r"ready at (http\S+) ")
    engine = re.search(r"--host (\S+) --port (\d+)", server.commands_of("engine"))
    assert engine is not None
    return f"http://{engine[1]}:{engine[2]}", front


def command_of(process: psutil.Process) -> str:
    return " ".join(process.cmdline())
