"""The gateway's own picture of its app: which replicas serve which model, and who waits for them.

Everything runs on one event loop and changes only between awaits, so counts need no locks.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from cluster.directory import Load, Picture, ReplicaRecord, ReplicaState
from cluster.errors import ModelNotFound, NoReplicaReady, QueueFull, did_you_mean
from serve_apps.limits import GatewayLimits
from serve_apps.load import OpenRequests
from serve_apps.observer import Observer
from serve_apps.picker import pick
from serve_apps.prefixes import NO_PREFIX, Prefix, SentPrefixes

# Of a name that a client sent: it may be as long as a body.
_SHOWN = 200


@dataclass(eq=False)
class Replica:
    """One replica, and what this gateway has sent it (a `picker.Candidate`)."""

    record: ReplicaRecord
    last_picked: int = 0
    cool_until: float = 0.0
    requests: OpenRequests = field(default_factory=OpenRequests)
    prefixes: SentPrefixes = field(default_factory=SentPrefixes)

    @property
    def id(self) -> str:
        return self.record.replica_id

    @property
    def capacity(self) -> int:
        return self.record.max_ongoing_requests

    @property
    def in_flight(self) -> int:
        return self.requests.own

    @property
    def ready(self) -> bool:
        return self.record.state is ReplicaState.READY

    @property
    def has_engine(self) -> bool:
        """Whether an engine server should answer at the replica's URL, in good health or not."""
        return bool(self.record.url) and self.record.state is not ReplicaState.DEAD

    def others(self, now: float) -> float:
        return self.requests.others(now)

    def share(self, prefix: Prefix) -> float:
        return self.prefixes.share(prefix)


class Fleet:
    """The replicas of one app by model, with a bounded first-come queue for each model.

    Args:
        models: the names that clients may ask for, whether a replica is there yet or not.
        limits: bounds of queue and waiting.
        wake: for each model whose replicas may all go, what makes one come back. It is called for
            each request that finds none.
        observer: is told of every pick.
    """

    def __init__(
        self,
        models: Iterable[str],
        limits: GatewayLimits | None = None,
        wake: Mapping[str, Callable[[], None]] | None = None,
        observer: Observer | None = None,
    ) -> None:
        limits, wakers, observer = limits or GatewayLimits(), wake or {}, observer or Observer()
        self._pools = {model: _Pool(model, limits, wakers.get(model), observer) for model in models}

    def update(self, picture: Picture) -> None:
        """Take over what the directory says of this app's replicas.

        A replica that a complete picture lacks is gone; while the picture is incomplete it stays
        as it was last seen.
        """
        records: defaultdict[str, list[ReplicaRecord]] = defaultdict(list)
        for record in picture.replicas:
            records[record.model].append(record)
        for model, pool in self._pools.items():
            pool.apply(records[model], picture.complete)
            pool.hear(picture.loads)

    def models(self) -> tuple[str, ...]:
        """The names that clients may ask for, in the order of the configuration."""
        return tuple(self._pools)

    def replicas(self, model: str) -> tuple[Replica, ...]:
        """All replicas of a model that are known, ready or not."""
        return tuple(self._pool(model).replicas.values())

    def queued(self, model: str) -> int:
        """How many requests wait for a free replica of a model."""
        return len(self._pool(model).waiters)

    def offers(self, model: str, excluded: Collection[str] = ()) -> bool:
        """Whether a replica of the model is ready, busy or not, other than the `excluded` ids."""
        return bool(self._pool(model).offered(excluded))

    @asynccontextmanager
    async def reserve(
        self, model: str, excluded: Collection[str] = (), prefix: Prefix = NO_PREFIX
    ) -> AsyncIterator[Replica]:
        """Hold a place on a replica of `model`, other than those with the `excluded` ids.

        One that was sent a prompt with the same `prefix` before is preferred. Waits while every
        ready replica is full.

        Raises:
            ModelNotFound: the app has no such model.
            QueueFull: too many wait already.
            NoReplicaReady: none is ready, or the wait took too long.
        """
        pool = self._pool(model)
        replica = await pool.acquire(_Wish(excluded, prefix))
        try:
            yield replica
        finally:
            pool.release(replica)

    def told(self, model: str) -> str:
        """In words: how the replicas of a model are."""
        return self._pool(model).told()

    def cool_down(self, replica: Replica) -> None:
        """Prefer other replicas to this one for a while."""
        self._pool(replica.record.model).cool_down(replica)

    def _pool(self, model: str) -> _Pool:
        if pool := self._pools.get(model):
            return pool
        name = model[:_SHOWN]
        raise ModelNotFound(
            f'model "{name}" is not served here{did_you_mean(name, self._pools)}',
            remedy=f"Served models: {', '.join(self._pools)}",
            param="model",
        )


@dataclass(frozen=True)
class _Wish:
    """Which replica a request may have (none with an `excluded` id), and would best have."""

    excluded: Collection[str]
    prefix: Prefix


class _Pool:
    """One model: its replicas, and the requests that wait for one of them to be free."""

    def __init__(
        self,
        model: str,
        limits: GatewayLimits,
        wake: Callable[[], None] | None,
        observer: Observer,
    ) -> None:
        self._model = model
        self._limits = limits
        self._wake = wake
        self._observer = observer
        self._picks = itertools.count(1)
        self.replicas: dict[str, Replica] = {}
        # In order of arrival: the future that gets a replica, and which one it should be.
        self.waiters: dict[asyncio.Future[Replica], _Wish] = {}

    def apply(self, records: Iterable[ReplicaRecord], complete: bool) -> None:
        missing = set(self.replicas)
        for record in records:
            missing.discard(record.replica_id)
            replica = self.replicas.setdefault(record.replica_id, Replica(record))
            replica.record = record
        for gone in (self.replicas[key] for key in missing if complete):
            if gone.in_flight:  # still counted, should it come back
                gone.record = replace(
                    gone.record, state=ReplicaState.DEAD, cause="it left the directory"
                )
            else:
                del self.replicas[gone.id]
        self._serve_waiters()

    def hear(self, loads: Mapping[str, Load]) -> None:
        now = time.monotonic()
        for replica in self.replicas.values():
            if news := loads.get(replica.id):
                replica.requests.hear(news, now)

    def offered(self, excluded: Collection[str]) -> list[Replica]:
        return [r for r in self.replicas.values() if r.ready and r.id not in excluded]

    async def acquire(self, wish: _Wish) -> Replica:
        asleep = self._asleep(wish)
        if not asleep and not self.offered(wish.excluded):
            raise self._not_ready()
        if not self.waiters and (replica := self._take(wish)):
            return replica
        if len(self.waiters) >= self._limits.max_queued_requests:
            raise QueueFull(
                f'{len(self.waiters)} requests wait for model "{self._model}" already',
                "every replica is busy and the queue is full",
                "try again later, or add replicas",
                retry_after_s=self._limits.retry_after_s,
            )
        if asleep and self._wake:
            self._wake()
        return await self._wait(wish, asleep)

    def _asleep(self, wish: _Wish) -> bool:
        """Whether there is no replica because nobody asked for a while: one can be had."""
        return self._wake is not None and not wish.excluded and not self.offered(())

    def release(self, replica: Replica) -> None:
        replica.requests.closed()
        self._serve_waiters()

    def cool_down(self, replica: Replica) -> None:
        replica.cool_until = time.monotonic() + self._limits.broken_cooldown_s
        asyncio.get_running_loop().call_later(self._limits.broken_cooldown_s, self._serve_waiters)

    def _take(self, wish: _Wish) -> Replica | None:
        replica = pick(self.offered(wish.excluded), time.monotonic(), wish.prefix)
        if replica:
            seen = replica.share(wish.prefix)
            reason = "retry" if wish.excluded else "prefix" if seen else "least_loaded"
            self._observer.picked(self._model, reason)
            replica.requests.opened()
            replica.prefixes.add(wish.prefix)
            replica.last_picked = next(self._picks)
        return replica

    async def _wait(self, wish: _Wish, asleep: bool) -> Replica:
        waiter: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        self.waiters[waiter] = wish
        limit = self._limits.wake_timeout_s if asleep else self._limits.queue_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await waiter
        except BaseException as error:
            self.waiters.pop(waiter, None)
            # The place may have been granted in the very moment in which the client left.
            if waiter.done() and not waiter.cancelled() and not waiter.exception():
                self.release(waiter.result())
            if isinstance(error, TimeoutError):
                told = f'every replica of model "{self._model}" was busy for {limit:g} s'
                if asleep:
                    told = f'model "{self._model}" did not wake in {limit:g} s: it {self.told()}'
                raise NoReplicaReady(
                    told,
                    remedy="try again later, or add replicas",
                    retry_after_s=self._limits.retry_after_s,
                ) from None
            raise

    def _serve_waiters(self) -> None:
        for waiter, wish in tuple(self.waiters.items()):
            if waiter.done():  # its client has just left
                continue
            if self._asleep(wish):
                break
            if not self.offered(wish.excluded):
                waiter.set_exception(self._not_ready())
            elif replica := self._take(wish):
                waiter.set_result(replica)
            elif wish.excluded:
                continue
            else:
                break
            del self.waiters[waiter]

    def _not_ready(self) -> NoReplicaReady:
        return NoReplicaReady(
            f'model "{self._model}" {self.told()}',
            remedy="try again later",
            retry_after_s=self._limits.retry_after_s,
        )

    def told(self) -> str:
        """Say what is known of the replicas: the first state of _TOLD that some replica is in."""
        newest = {
            r.record.state: r.record
            for r in sorted(self.replicas.values(), key=lambda r: r.record.since)
        }
        for state, words in _TOLD.items():
            if record := newest.get(state):
                return words.format(phase=record.phase or "not known", cause=record.cause)
        return "has no replica"


_TOLD = {
    ReplicaState.READY: "is ready",
    ReplicaState.STARTING: "is starting: phase {phase}",
    ReplicaState.STALLED: "has stalled: {cause}",
    ReplicaState.DRAINING: "is draining and takes no new requests",
    ReplicaState.DEAD: "has no replica; the last one died: {cause}",
}
