"""The seam between the replica and any engine: plain data, and the protocol that makes it.

An engine here is a table of facts and a few pure functions: how to check a request for a model,
which command line to run, which log lines mark its phases and failures. What runs it is always
the same: `group.EngineGroup`, over the supervisor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from cluster.errors import EngineError, PermanentEngineError, TransientEngineError


@dataclass(frozen=True)
class EngineSpec:
    """What one replica serves, in words that hold for every engine.

    `model` is a local folder or a hub id, `engine_args` goes to the engine's command line as it
    is, `env` is added to its environment. `max_model_len` is in tokens (None: the model's own),
    `threads` are CPU threads for one rank.
    """

    engine: str
    model: str
    served_model_name: str
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    dtype: str = "auto"
    engine_python: str = ""
    threads: int = 1
    engine_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PortNeed:
    """A port that an engine needs: `window` consecutive ones, of which the lease names the first.

    It is needed on the head's node, or on every node of the replica (`every_node`).
    """

    name: str
    window: int = 1
    every_node: bool = False


@dataclass(frozen=True)
class Lease:
    """What the coordinator granted to one replica on one node: an address, and ports by name.

    `windows` has the length of those that are the first of several consecutive ports.
    """

    replica_id: str
    node_id: str
    host: str
    ports: Mapping[str, int]
    windows: Mapping[str, int] = field(default_factory=dict)

    def held(self) -> list[int]:
        """Every single port of the lease."""
        return [
            first + offset
            for name, first in self.ports.items()
            for offset in range(self.windows.get(name, 1))
        ]


@dataclass(frozen=True)
class Seat:
    """One node of a replica.

    `devices` are the logical ids of the NPUs that the replica has there (none on CPU),
    `interface` is the network interface that carries the lease's host.
    """

    lease: Lease
    devices: tuple[int, ...] = ()
    interface: str = ""


@dataclass(frozen=True)
class Site:
    """Where a replica stands: its nodes, that of rank 0 first.

    `placement_group` is the hex id of the group that holds its devices, empty when the replica's
    own actor does.
    """

    seats: tuple[Seat, ...]
    placement_group: str = ""

    @property
    def head(self) -> Lease:
        """The lease on rank 0's node."""
        return self.seats[0].lease


class Hold(StrEnum):
    """Who holds a replica's devices in Ray.

    REPLICA: its own actor, all on one node. WORKERS: bundles of a placement group, for Ray workers
    that the engine starts itself. RANK: one DeviceHost for each device. NODE: one DeviceHost for
    each node, with all of the replica's devices there.
    """

    REPLICA = "replica"
    WORKERS = "workers"
    RANK = "rank"
    NODE = "node"


@dataclass(frozen=True)
class Needs:
    """The devices of one replica, and how they are held.

    `devices` is the world size, `group` how many of them should share a node (a tensor parallel
    group). `many_nodes` is None where the engine cannot span nodes.
    """

    devices: int
    group: int
    one_node: Hold = Hold.REPLICA
    many_nodes: Hold | None = None


@dataclass(frozen=True)
class ProcessPlan:
    """One process of a replica, exactly as it will run.

    `env` is set on top of the parent's environment, after the names in `unset_env` are removed.
    `seat` is the index of its node in the Site, `rank` that of the DeviceHost that runs it (None:
    the replica itself, or any process of ours on that node). `files` are written there before the
    start (path to text, for the owner and its group alone), and removed after the end.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    unset_env: frozenset[str] = frozenset()
    seat: int = 0
    rank: int | None = None
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LaunchPlan:
    """Exactly what will run, in the order of its start. Pure data: printing it is planning.

    `url` is the HTTP address of the head, whose output tells phases and readiness.
    """

    processes: tuple[ProcessPlan, ...]
    url: str
    head_index: int = 0

    @property
    def head(self) -> ProcessPlan:
        return self.processes[self.head_index]


@dataclass(frozen=True)
class Phase:
    """A named stretch of an engine's start.

    It begins with the first output line that `begins` finds (None: with the process), and may
    last `limit_s` seconds. `usual_cause` says what it most often means when the limit passes.
    """

    name: str
    limit_s: float
    begins: re.Pattern[str] | None = None
    usual_cause: str = ""


@dataclass(frozen=True)
class KnownFailure:
    """An output line (`pattern`) that tells why an engine fails.

    `why` and `remedy` may use the named groups of `pattern` as `{name}`.
    """

    pattern: re.Pattern[str]
    why: str
    remedy: str
    transient: bool = False

    def error(self, saw: str, match: re.Match[str], tail: tuple[str, ...] = ()) -> EngineError:
        kind = TransientEngineError if self.transient else PermanentEngineError
        groups = {name: value or "" for name, value in match.groupdict().items()}
        return kind(saw, self.why.format(**groups), self.remedy.format(**groups), tail)


@dataclass(frozen=True)
class Probe:
    """The request that makes one real token: engines have answered /health and died on it."""

    path: str
    body: Mapping[str, object]


@dataclass(frozen=True)
class Stats:
    """An engine's own counters at one moment.

    `running` and `waiting` are requests, `kv_usage` is a share from 0 to 1, `tokens` counts every
    prompt and output token since the start (it stands still when the engine does), of which
    `output_tokens` were made.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    tokens: float = 0.0
    output_tokens: float = 0.0


class Engine(Protocol):
    """What Rayscend must know of an engine to run it."""

    name: str
    phases: tuple[Phase, ...]
    failures: tuple[KnownFailure, ...]
    ports: tuple[PortNeed, ...]

    def check(self, spec: EngineSpec) -> None:
        """Refuse at once, with a ConfigError, what this engine could never start."""

    def needs(self, spec: EngineSpec) -> Needs:
        """The devices of one replica of `spec`."""

    def plan(self, spec: EngineSpec, site: Site) -> LaunchPlan:
        """Command lines and environments for `spec` on the leased addresses."""

    def probe(self, spec: EngineSpec) -> Probe:
        """The smallest request that yields one token."""

    def stats(self, metrics: str) -> Stats:
        """Read the engine's counters from the Prometheus text of its /metrics."""
