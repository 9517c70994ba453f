"""What cluster tests do again and again: deploy, look at the directory, find and kill processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
import psutil
import ray
from ray import serve

from cluster.coordinator import NAME, NAMESPACE
from cluster.directory import Picture, ReplicaRecord, ReplicaState
from cluster.engines.prometheus import read_stats
from cluster.engines.supervisor import processes_of
from serve_apps.application import deploy

T = TypeVar("T")


def eventually(look: Callable[[], T], within: float = 30.0, what: str = "") -> T:
    """Look until what is seen is true; return it, or fail with the last thing seen."""
    deadline = time.monotonic() + within
    while not (seen := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or look}; last seen {seen!r}")
        time.sleep(0.05)
    return seen


@dataclass(frozen=True)
class Processes:
    """The processes behind one replica."""

    engine: psutil.Process
    supervisor: psutil.Process
    actor: psutil.Process
    tree_id: str


@dataclass
class Cluster:
    """The running cluster of a test module, and what its tests ask of it."""

    url: str
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def close(self) -> None:
        self.client.close()

    def deploy(self, ready: int | None = None, within: float = 60, **args: Any) -> Any:
        """Deploy `args` as application "default" and wait until HTTP answers for it."""
        handle = self.begin(**args)
        wanted = ready if ready is not None else int(args.get("num_replicas", 1))
        eventually(lambda: len(self.ready()) >= wanted, within, f"{wanted} ready replicas")
        eventually(lambda: self.client.get("/health").status_code == 200, 30, "/health")
        return handle

    def begin(self, **args: Any) -> Any:
        """Deploy without waiting for anything."""
        return serve._run(deploy(args), _blocking=False, name="default", route_prefix="/")

    def picture(self) -> Picture:
        try:
            picture: Picture = ray.get(ray.get_actor(NAME, NAMESPACE).picture.remote(), timeout=10)
        except (ValueError, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            return Picture()
        return picture

    def replicas(self, *states: ReplicaState) -> list[ReplicaRecord]:
        return [r for r in self.picture().replicas if not states or r.state in states]

    def ready(self) -> list[ReplicaRecord]:
        return self.replicas(ReplicaState.READY)

    def running(self, model: str) -> int:
        """How many requests the engines of `model` run, by their own counters."""
        urls = [replica.url for replica in self.ready() if replica.model == model]
        return sum(read_stats(httpx.get(f"{url}/metrics").text).running for url in urls)

    def chat(self, content: str = "hello", **body: Any) -> httpx.Response:
        message = {"messages": [{"role": "user", "content": content}], "max_tokens": 4}
        return self.client.post("/v1/chat/completions", json=message | body)


def processes_behind(record: ReplicaRecord) -> Processes:
    """Find them by who listens on the leased port."""
    port = record.ports["http"]
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            engine = psutil.Process(connection.pid)
            tree_id = engine.environ()["RAYSCEND_TREE_ID"]
            while (parent := engine.parent()) and "supervisor.py" not in " ".join(parent.cmdline()):
                engine = parent
            supervisor = psutil.Process(engine.ppid())
            return Processes(engine, supervisor, psutil.Process(supervisor.ppid()), tree_id)
    raise AssertionError(f"nobody listens on {port}")


def actors_of(part: str) -> list[psutil.Process]:
    """The processes of this cluster's Serve replicas that have `part` in their names."""
    names = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
    replicas = [name for name in names if name.startswith("SERVE_REPLICA::") and part in name]
    return [_process_of(ray.get_actor(name, "serve")) for name in replicas]


def coordinator_process() -> psutil.Process:
    """The process of this cluster's coordinator; other clusters on this host have their own."""
    return _process_of(ray.get_actor(NAME, NAMESPACE))


def _process_of(actor: Any) -> psutil.Process:
    return psutil.Process(ray.get(actor.__ray_call__.remote(lambda self: os.getpid()), timeout=30))


def gone(processes: Processes, within: float = 10.0) -> None:
    """Fail unless every process of this engine's tree ends in time."""
    eventually(lambda: not processes_of(processes.tree_id), within, "the whole tree gone")


def kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)
