"""What `serve run app:deploy` does and says on the console where it starts Ray itself."""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

import httpx
import ray
from ray import serve
from ray.serve._private.constants import SERVE_NAMESPACE

from cluster.coordinator import NAME, NAMESPACE
from cluster.directory import Picture, ReplicaRecord, ReplicaState
from cluster.errors import ConfigError
from cluster.ports import can_bind, free_port, listeners
from serve_apps.config import DeployConfig

_SERVE_DEFAULTS = ("127.0.0.1", 8000)


def say(line: str) -> None:
    """One line for the person at the console."""
    print(f"rayscend: {line}", flush=True)


def start_here(config: DeployConfig, application: str) -> None:
    """Make sure the HTTP port is free, start Ray where it must be told of it, follow the start.

    From here on, Ctrl-C deletes the `application` before it reaches `serve run`.

    Raises:
        ConfigError: the port is taken.
    """
    host = config.http_host
    port = config.http_port or free_port(host)
    if not can_bind(host, port):
        holders = [f" by process {pid} ({name})" for pid, name in listeners(port).items()]
        raise ConfigError(
            f"http_port={port}",
            f"it is taken{','.join(holders)}",
            "stop that, or give another http_port (0 takes a free one)",
        )
    signal.signal(signal.SIGINT, _Interrupt(application))
    say("starting Ray")
    if (host, port) != _SERVE_DEFAULTS:
        # `serve run` has no option for them; it uses a Serve that already runs.
        ray.init(namespace=SERVE_NAMESPACE)
        serve.start(http_options={"host": host, "port": port})
    url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
    _Follower(url, tuple(model.name for model in config.models)).start()


class _Interrupt:
    """Ctrl-C: let running requests finish, and only then let `serve run` stop.

    `serve run` alone takes HAProxy away first, which cuts every stream.
    """

    def __init__(self, application: str) -> None:
        self._application = application
        self._asked = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self._asked or not ray.is_initialized():
            raise KeyboardInterrupt
        self._asked = True
        say("running requests are finished first; Ctrl-C again stops at once")
        threading.Thread(target=self._finish, daemon=True).start()

    def _finish(self) -> None:
        try:
            while True:
                try:
                    serve.delete(self._application)
                    break
                except TimeoutError:
                    continue
        finally:
            os.kill(os.getpid(), signal.SIGINT)


class _Follower:
    """Says what becomes of the replicas, and once, when all models answer, how to reach them.

    What stands in the way of that is said again at the very end, below Ray's own words.
    """

    def __init__(self, url: str, models: tuple[str, ...]) -> None:
        self._url, self._models = url, models
        self._seen: dict[str, tuple[ReplicaRecord, float]] = {}
        self._causes: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        atexit.register(self._stop)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.2) and not self._ready():
            self._look()
        self._look()
        if not self._over.is_set():
            self._causes.clear()
            say(_invitation(self._url, self._models[0]))
        while not self._over.wait(0.5):
            self._look()

    def _stop(self) -> None:
        """Before Ray leaves: a question to it afterwards would start it anew."""
        self._over.set()
        self._thread.join(10)
        if self._causes:
            say(self._causes[-1])

    def _look(self) -> None:
        for record in _picture().replicas:
            before, since = self._seen.get(record.replica_id, (None, 0.0))
            if before and (before.state, before.phase) == (record.state, record.phase):
                continue
            now = time.monotonic()
            self._seen[record.replica_id] = record, now
            took = f" ({before.phase}: {now - since:.1f} s)" if before and before.phase else ""
            name = f"{record.model} ({record.replica_id})"
            line = f"{name}: {record.phase or record.cause or record.state}{took}"
            if record.state is ReplicaState.DEAD:
                line = f"{name} died: {record.cause}"
                self._causes.append(line)
            say(line)

    def _ready(self) -> bool:
        try:
            models = httpx.get(f"{self._url}/health", timeout=5).json()["models"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            # Serve and its HAProxy answer in their own ways while the gateway is not there.
            return False
        return all(models.get(model, {}).get("ready") for model in self._models)


def _picture() -> Picture:
    if not ray.is_initialized():
        return Picture()
    try:
        coordinator: Any = ray.get_actor(NAME, NAMESPACE)
        picture: Picture = ray.get(coordinator.picture.remote(), timeout=5)
    except Exception:
        # Ray or the coordinator is not there yet, or is leaving: both are Ray's to report.
        return Picture()
    return picture


def _invitation(url: str, model: str) -> str:
    question = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"model": model, "temperature": 0, "messages": [question]})
    return (
        f"ready at {url} — try:\n\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"    -d '{body}'\n\n"
        f"Ctrl-C stops everything."
    )
