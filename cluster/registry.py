"""What the coordinator knows, as a pure state machine: leases, the directory, memory of deaths.

Time is an argument everywhere (Unix seconds), so that tests own the clock. The actor around it
is in `coordinator.py`.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cluster.directory import IDLE, Load, Picture, ReplicaRecord, ReplicaState
from cluster.engines.base import Lease, PortNeed
from cluster.errors import TransientEngineError
from cluster.ports import PortLedger

RENEW_PERIOD_S = 2.0
LEASE_TTL_S = 10.0
DEAD_SHOWN_S = 120.0


@dataclass(frozen=True)
class Ask:
    """Ports for a replica on one node; not those in `avoid`, which the node found taken."""

    node_id: str
    host: str
    needs: Sequence[PortNeed]
    avoid: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Death:
    """One replica's end: when (Unix seconds), whose, why, and whether a new try may help."""

    when: float
    replica_id: str
    deployment: str
    version: str
    cause: str
    transient: bool


@dataclass
class _Held:
    leases: Sequence[Lease]
    renewed: float


@dataclass
class Registry:
    """Leases, directory and deaths.

    After a restart (`recovering`) nothing new is granted until one renew period has passed:
    replicas bring their leases back in that time, and a port must not be given twice.
    """

    recovering_until: float = 0.0
    ledger: PortLedger = field(default_factory=PortLedger)
    epoch: str = field(default_factory=lambda: uuid.uuid4().hex)
    number: int = 0
    beat: int = 0
    _leases: dict[str, _Held] = field(default_factory=dict)
    _records: dict[str, ReplicaRecord] = field(default_factory=dict)
    _loads: dict[str, Load] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)
    _deaths: deque[Death] = field(default_factory=lambda: deque(maxlen=200))

    def lease(self, replica_id: str, asks: Sequence[Ask], now: float) -> list[Lease] | None:
        """Grant the ports of each node that is asked for; None while still recovering.

        What the replica held before is given back first.

        Raises:
            TransientEngineError: no ports are left.
        """
        if now < self.recovering_until:
            return None
        self._end_lease(replica_id)
        leases = [self._grant(replica_id, ask) for ask in asks]
        self._leases[replica_id] = _Held(leases, now)
        return leases

    def _grant(self, replica_id: str, ask: Ask) -> Lease:
        sizes = [need.window for need in ask.needs]
        firsts = self.ledger.lease(ask.node_id, replica_id, sizes, ask.avoid)
        names = [need.name for need in ask.needs]
        windows = {need.name: need.window for need in ask.needs if need.window > 1}
        ports = dict(zip(names, firsts, strict=True))
        return Lease(replica_id, ask.node_id, ask.host, ports, windows)

    def renew(
        self, record: ReplicaRecord, leases: Sequence[Lease], now: float, load: Load = IDLE
    ) -> bool:
        """Keep leases alive and take the replica's word on its state and its engine's load.

        Also how a replica comes back after the coordinator was restarted, or after a silence that
        was taken for its death. False: it said itself that it died, or another replica holds one
        of its ports now; it must end.
        """
        if record.replica_id in self._ended:
            return False
        if not all(
            self.ledger.restore(lease.node_id, lease.replica_id, lease.held()) for lease in leases
        ):
            return False
        self._leases[record.replica_id] = _Held(leases, now)
        self.put(record)
        if self._loads.get(record.replica_id, IDLE) != load:
            self._loads[record.replica_id] = load
            self.beat += 1
        return True

    def put(self, record: ReplicaRecord) -> None:
        """Enter or change a replica in the directory."""
        if self._records.get(record.replica_id) != record:
            self._records[record.replica_id] = record
            self.number += 1

    def died(self, record: ReplicaRecord, transient: bool, now: float) -> None:
        """A replica says that it is gone, and why: `record.cause`. Its lease ends with it."""
        self._ended.add(record.replica_id)
        self._bury(record, transient, now)

    def _bury(self, record: ReplicaRecord, transient: bool, now: float) -> None:
        self.put(replace(record, state=ReplicaState.DEAD, since=now))
        self._end_lease(record.replica_id)
        self._deaths.append(
            Death(
                now, record.replica_id, record.deployment, record.version, record.cause, transient
            )
        )

    def left(self, replica_id: str) -> None:
        """A replica was stopped as planned."""
        self._end_lease(replica_id)
        self._ended.discard(replica_id)
        if self._records.pop(replica_id, None):
            self.number += 1

    def expire(self, now: float) -> None:
        """End leases that nobody renews, and forget the dead after a while."""
        for replica_id, held in list(self._leases.items()):
            if now - held.renewed > LEASE_TTL_S:
                record = self._records.get(replica_id)
                if record is None:
                    self._end_lease(replica_id)
                    continue
                cause = f"it stopped renewing its lease {LEASE_TTL_S:.0f} s ago"
                self._bury(replace(record, cause=cause), transient=True, now=now)
        for record in list(self._records.values()):
            if record.state is ReplicaState.DEAD and now - record.since > DEAD_SHOWN_S:
                self.left(record.replica_id)

    def picture(self, now: float) -> Picture:
        records = tuple(sorted(self._records.values(), key=lambda record: record.replica_id))
        complete = now >= self.recovering_until
        return Picture(self.epoch, self.number, complete, records, self.beat, dict(self._loads))

    def deaths(self, deployment: str = "", version: str = "") -> list[Death]:
        """The deaths remembered, oldest first; of one deployment version where one is named."""
        return [
            death
            for death in self._deaths
            if not deployment or (death.deployment, death.version) == (deployment, version)
        ]

    def wait_before_start(self, deployment: str, version: str, now: float) -> tuple[float, str]:
        """How many seconds a new replica should wait, and the cause of the last permanent death.

        1, 2, 4 … 60 s after one, two, three … permanent deaths in a row of the same version.
        """
        count, last = 0, None
        for death in reversed(self.deaths(deployment, version)):
            if death.transient:
                break
            count, last = count + 1, last or death
        if last is None:
            return 0.0, ""
        return max(0.0, min(60.0, 2.0 ** (count - 1)) - (now - last.when)), last.cause

    @property
    def idle(self) -> bool:
        return not self._leases

    def _end_lease(self, replica_id: str) -> None:
        self.ledger.release(replica_id)
        self._leases.pop(replica_id, None)
        self._loads.pop(replica_id, None)


class Unleasable(TransientEngineError):
    """Every port that was proposed turned out to be taken."""
