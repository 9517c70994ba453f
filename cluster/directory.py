"""The directory's data: one record for every replica, and the picture that watchers receive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ReplicaState(StrEnum):
    """Where a replica is in its life. Only READY ones are offered new requests."""

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    DRAINING = "draining"
    DEAD = "dead"


@dataclass(frozen=True)
class ReplicaRecord:
    """One replica, as it last described itself.

    `phase` is the name of the start-up phase while STARTING, `cause` says why it is DEAD or
    STALLED, `since` is the Unix time in seconds at which `state` was entered, `url` the base URL
    of its engine server (empty until READY), `max_ongoing_requests` how many requests at once a
    gateway may send it.
    """

    replica_id: str
    app: str
    deployment: str
    version: str
    model: str
    engine: str
    node_id: str
    state: ReplicaState
    since: float
    url: str = ""
    phase: str = ""
    cause: str = ""
    max_ongoing_requests: int = 256
    ports: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """What the engine of a replica had to do a moment ago.

    `running` and `waiting` are requests, whoever sent them. `sampled` is the Unix time in seconds
    by the replica's own clock: it tells one sample from the next, no more.
    """

    running: int = 0
    waiting: int = 0
    sampled: float = 0.0

    @property
    def requests(self) -> int:
        return self.running + self.waiting


IDLE = Load()


@dataclass(frozen=True)
class Picture:
    """All replicas at one moment, and their loads by replica id.

    `epoch` changes when the coordinator restarts; within it `number` grows with every change of a
    replica's record, `beat` with every load that is reported.
    While `complete` is false a restarted coordinator still waits for replicas to report
    themselves: a replica that is missing then is not known to be gone.
    """

    epoch: str = ""
    number: int = 0
    complete: bool = False
    replicas: tuple[ReplicaRecord, ...] = ()
    beat: int = 0
    loads: Mapping[str, Load] = field(default_factory=dict)
