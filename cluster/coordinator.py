"""The coordinator: one named, detached Ray actor that knows who is where.

It must never be a reason for a running replica to stop: everything here can be away for a while.
Replicas renew, gateways keep their last picture, and a restarted coordinator learns from both.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.util.annotations import RayDeprecationWarning

from cluster.directory import IDLE, Load, Picture, ReplicaRecord
from cluster.engines.base import Lease
from cluster.errors import CoordinatorError
from cluster.ports import can_bind
from cluster.registry import RENEW_PERIOD_S, Ask, Death, Registry, Unleasable

NAME, NAMESPACE = "coordinator", "rayscend"
PROTOCOL = 2
IDLE_END_S = 60.0
WATCH_S = 20.0
TICK_S = 0.25
_LEASE_TRIES = 50


class Coordinator:
    """The actor around a Registry. Methods are short; only `watch` waits."""

    def __init__(self, protocol: int, recovering: bool) -> None:
        wait = RENEW_PERIOD_S * 1.5 if recovering or _restarted() else 0.0
        self._registry = Registry(recovering_until=time.time() + wait)
        self._protocol = protocol
        self._changed = asyncio.Condition()
        self._last_used = time.time()
        self._beat = 0
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def protocol(self) -> int:
        return self._protocol

    async def lease(self, replica_id: str, asks: Sequence[Ask]) -> list[Lease] | None:
        self._last_used = time.time()
        return self._registry.lease(replica_id, asks, time.time())

    async def renew(self, record: ReplicaRecord, leases: Sequence[Lease], load: Load) -> bool:
        kept = self._registry.renew(record, leases, time.time(), load)
        await self._tell()
        return kept

    async def died(self, record: ReplicaRecord, transient: bool) -> None:
        self._registry.died(record, transient, time.time())
        await self._tell()

    async def left(self, replica_id: str) -> None:
        self._registry.left(replica_id)
        await self._tell()

    async def wait_before_start(self, deployment: str, version: str) -> tuple[float, str]:
        return self._registry.wait_before_start(deployment, version, time.time())

    async def deaths(self) -> list[Death]:
        return self._registry.deaths()

    async def picture(self) -> Picture:
        return self._registry.picture(time.time())

    async def watch(self, epoch: str, number: int, complete: bool, beat: int) -> Picture:
        """The next picture that differs from the one named, or the same after WATCH_S seconds.

        A record's change is told at once, loads all together once a tick: every replica with work
        reports one each second.
        """

        def news() -> bool:
            now = self._registry.picture(time.time())
            changed = (now.epoch, now.number, now.complete) != (epoch, number, complete)
            return changed or self._beat > beat

        self._last_used = time.time()
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(news), WATCH_S)
        self._last_used = time.time()
        return await self.picture()

    async def _tell(self) -> None:
        self._last_used = time.time()
        async with self._changed:
            self._changed.notify_all()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._beat = self._registry.beat
            self._registry.expire(time.time())
            async with self._changed:
                self._changed.notify_all()
            unused = time.time() - self._last_used
            if self._registry.idle and unused > IDLE_END_S + WATCH_S:
                ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def _restarted() -> bool:
    with warnings.catch_warnings():
        # Ray warns of its own use of another property in there.
        warnings.simplefilter("ignore", RayDeprecationWarning)
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


Taken = Callable[[Lease], Awaitable[Collection[int]]]
"""Tells which ports of a lease a stranger holds on its node."""


async def taken_here(lease: Lease) -> Collection[int]:
    """Which ports of a lease on this node cannot be bound."""
    return [port for port in lease.held() if not can_bind(lease.host, port)]


class CoordinatorClient:
    """Calls the coordinator from inside an event loop, and makes it where there is none.

    A call that meets a dead or restarting coordinator is tried again until `patience_s` is over;
    every method of the actor is safe to repeat.
    """

    def __init__(self, patience_s: float = 30.0) -> None:
        self._patience_s = patience_s
        self._actor: Any = None
        self._met_before = False

    async def lease(
        self, replica_id: str, asks: Sequence[Ask], taken: Taken = taken_here
    ) -> list[Lease]:
        """Lease what `asks` name on each node; `taken` tests a lease's ports by binding there.

        Raises:
            TransientEngineError: no free port was found.
        """
        for _ in range(_LEASE_TRIES):
            leases: list[Lease] | None = await self._call("lease", replica_id, asks)
            if leases is None:
                await asyncio.sleep(RENEW_PERIOD_S / 4)
                continue
            found = [frozenset(await taken(lease)) for lease in leases]
            if not any(found):
                return leases
            asks = [
                replace(ask, avoid=ask.avoid | ports)
                for ask, ports in zip(asks, found, strict=True)
            ]
        tried = ", ".join(f"{len(ask.avoid)} on {ask.host}" for ask in asks)
        raise Unleasable(
            f"ports were tried and all of them are taken: {tried}",
            remedy="find out what listens there (ss -ltnp), or widen the range of ports",
        )

    async def renew(
        self, record: ReplicaRecord, leases: Sequence[Lease], load: Load = IDLE
    ) -> bool:
        return bool(await self._call("renew", record, leases, load))

    async def died(self, record: ReplicaRecord, transient: bool) -> None:
        await self._call("died", record, transient)

    async def left(self, replica_id: str) -> None:
        await self._call("left", replica_id)

    async def wait_before_start(self, deployment: str, version: str) -> tuple[float, str]:
        seconds, cause = await self._call("wait_before_start", deployment, version)
        return float(seconds), str(cause)

    async def watch(self) -> AsyncIterator[Picture]:
        """Every new picture, as it comes; for ever."""
        seen = Picture()
        while True:
            try:
                picture = await self._call(
                    "watch", seen.epoch, seen.number, seen.complete, seen.beat
                )
            except CoordinatorError:
                await asyncio.sleep(1)
                continue
            if picture != seen:
                yield picture
            seen = picture

    async def _call(self, method: str, *args: Any) -> Any:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                actor = await self._connect()
                return await getattr(actor, method).remote(*args)
            except RayActorError as error:
                self._actor = None
                if time.monotonic() > deadline:
                    raise CoordinatorError(
                        f"the coordinator did not answer {method} for {self._patience_s:.0f} s",
                        str(error).splitlines()[0],
                        "see the actor named coordinator in the Ray dashboard",
                    ) from error
            await asyncio.sleep(0.2)

    async def _connect(self) -> Any:
        if self._actor is None:
            # Who has met a coordinator before knows that others may hold leases of it, too.
            self._actor = start_coordinator(recovering=self._met_before)
            theirs = await self._actor.protocol.remote()
            if theirs != PROTOCOL:
                raise CoordinatorError(
                    f"the cluster's coordinator speaks protocol {theirs}, this Rayscend {PROTOCOL}",
                    "another version of Rayscend serves on this cluster",
                    "use the same version, or shut the other application down first",
                )
            self._met_before = True
        return self._actor


def start_coordinator(recovering: bool = False) -> Any:
    """The cluster's coordinator; made if there is none."""
    return (
        ray.remote(Coordinator)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=1000,
            num_cpus=0,
        )
        .remote(PROTOCOL, recovering)
    )
