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
import psutil
import ray
from ray import serve
from ray.serve._private.constants import SERVE_NAMESPACE

from cluster.errors import ConfigError
from cluster.ports import can_bind, free_port
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
        raise ConfigError(
            f"http_port={port}",
            f"it is taken{_holder(port)}",
            "stop that, or give another http_port (0 takes a free one)",
        )
    signal.signal(signal.SIGINT, _Interrupt(application))
    say("starting Ray")
    if (host, port) != _SERVE_DEFAULTS:
        # `serve run` has no option for them; it uses a Serve that already runs.
        ray.init(namespace=SERVE_NAMESPACE)
        serve.start(http_options={"host": host, "port": port})
    url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
    model = config.models[0].name
    threading.Thread(target=_follow, args=(url, model), daemon=True).start()


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


def _follow(url: str, model: str) -> None:
    """Say once how to reach the models, as soon as each has a replica that is ready.

    What stands in the way of that is said again at the very end, below Ray's own words.
    """
    told: list[str] = []
    atexit.register(_say_all, told)
    while True:
        health = _health(url)
        if health:
            told[:] = [state["told"] for state in health.values() if " died: " in state["told"]]
        if health and all(state["ready"] for state in health.values()):
            say(_invitation(url, model))
            return
        time.sleep(0.3)


def _say_all(lines: list[str]) -> None:
    for line in lines:
        say(line)


def _health(url: str) -> dict[str, Any]:
    try:
        models: dict[str, Any] = httpx.get(f"{url}/health", timeout=5).json()["models"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        # Serve and its HAProxy answer in their own ways while the gateway is not there.
        return {}
    return models


def _invitation(url: str, model: str) -> str:
    question = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"model": model, "messages": [question]})
    return (
        f"ready at {url} — try:\n\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"    -d '{body}'\n\n"
        f"Ctrl-C stops everything."
    )


def _holder(port: int) -> str:
    """` by pid 12 (name)` of whoever listens on `port`, as far as we may know."""
    for connection in psutil.net_connections("tcp"):
        if connection.status != psutil.CONN_LISTEN or connection.laddr[1:] != (port,):
            continue
        if connection.pid is not None:
            return f" by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""
