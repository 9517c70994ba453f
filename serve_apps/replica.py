"""EngineReplica: one Ray Serve replica is one model replica.

It leases addresses, starts the engine under its supervisor, tells the coordinator how it is, and
goes down with its engine. Requests never pass through here: gateways talk to the engine's URL.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from dataclasses import dataclass, replace

import ray
from ray import serve

from cluster.coordinator import CoordinatorClient
from cluster.directory import IDLE, Load, ReplicaRecord, ReplicaState
from cluster.engines import EngineSpec, engine_named
from cluster.engines.base import Lease, Seat, Site
from cluster.engines.child import LocalChild
from cluster.engines.group import EngineEvent, EngineGroup, PhaseStarted, Ready, Warned
from cluster.errors import EngineError, PermanentEngineError, RayscendError
from cluster.nodes import engine_host, serve_log_folder
from cluster.registry import RENEW_PERIOD_S, Ask
from serve_apps.autoscaling import LOAD
from serve_apps.metrics import Source
from serve_apps.progress import Progress
from serve_apps.ray_metrics import RaySink
from serve_apps.recorder import ReplicaMetrics
from serve_apps.serve_settings import join_serve_log

logger = logging.getLogger(__name__)

TRANSIENT_TRIES = 3
STOP_GRACE_S = 8.0
STATS_PERIOD_S = 0.5
_LAST_REQUESTS_S = 2.0
_CAUSE_HEARD_S = 1.0


@dataclass(frozen=True)
class ReplicaSettings:
    """What a replica must know beside its model; seconds throughout.

    `sharers` is how many replicas the whole application has: on a machine without accelerators
    they share out its cores.
    """

    max_ongoing_requests: int
    drain_timeout_s: float
    stall_after_s: float
    stall_limit_s: float
    sharers: int


@serve.deployment(
    # A permanent cause fails again; the transient ones are retried inside the constructor.
    max_constructor_retry_count=1,
    # Serve looks often and judges slowly: a busy node may answer late.
    health_check_period_s=1,
    health_check_timeout_s=30,
)
class EngineReplica:
    """Starts with its engine, ends with it."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, spec: EngineSpec, settings: ReplicaSettings
    ) -> None:
        join_serve_log()
        context = serve.get_replica_context()
        threads = max(1, (os.cpu_count() or 1) // settings.sharers // spec.tensor_parallel_size)
        self._spec, self._settings = replace(spec, threads=threads), settings
        self._engine = engine_named(spec.engine)
        self._coordinator = CoordinatorClient()
        self._progress = Progress(settings.stall_after_s, settings.stall_limit_s)
        self._metrics = ReplicaMetrics(RaySink(Source.REPLICA), spec.served_model_name)
        self._group: EngineGroup | None = None
        self._leases: list[Lease] = []
        self._load = IDLE
        self._tasks: list[asyncio.Task[None]] = []
        self._renewing: asyncio.Task[None] | None = None
        self._record = ReplicaRecord(
            replica_id=context.replica_id.unique_id,
            app=context.app_name,
            deployment=context.deployment,
            version=_version(spec),
            model=spec.served_model_name,
            engine=self._engine.name,
            node_id=ray.get_runtime_context().get_node_id(),
            state=ReplicaState.STARTING,
            since=time.time(),
            phase="waiting for a lease",
            max_ongoing_requests=settings.max_ongoing_requests,
        )
        self._log_path = serve_log_folder() / (
            f"engine_{context.deployment}_{context.replica_id.unique_id}.log"
        )
        await self._wait_after_deaths()
        try:
            await self._start()
        except RayscendError as error:
            await self._tell_death(error)
            # Serve may tear the application down at once: first let everybody hear the cause.
            await asyncio.sleep(_CAUSE_HEARD_S)
            raise
        self._renewing = asyncio.create_task(self._renew())
        self._tasks = [
            asyncio.create_task(self._die_with_engine()),
            asyncio.create_task(self._watch_progress()),
        ]

    async def check_health(self) -> None:
        """Called by Serve. Health is progress: an engine with work that yields nothing is ill."""
        if self._progress.ill:
            raise RuntimeError(self._progress.told)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve: what the engine has to do (see autoscaling.py)."""
        return {LOAD: float(self._progress.load)}

    async def wake(self) -> None:
        """Nothing: a call that waits for a replica makes Serve start one where there is none."""

    async def __del__(self) -> None:
        """Drain, then stop: Serve awaits this up to graceful_shutdown_timeout_s."""
        for task in self._tasks:
            task.cancel()
        if self._group is not None:
            await self._drain(self._group)
            await self._group.stop(STOP_GRACE_S)
        if self._renewing is not None:
            self._renewing.cancel()
        await self._coordinator.left(self._record.replica_id)

    async def _wait_after_deaths(self) -> None:
        wait, cause = await self._coordinator.wait_before_start(
            self._record.deployment, self._record.version
        )
        if wait:
            logger.warning(f"Waiting {wait:.0f} s for the next try; the last failed: {cause}")
            await asyncio.sleep(wait)

    async def _start(self) -> None:
        for left in reversed(range(TRANSIENT_TRIES)):
            try:
                await self._start_once()
                return
            except EngineError as error:
                if not error.transient or not left:
                    raise
                logger.warning(f"{error} Trying again with other addresses.")

    async def _start_once(self) -> None:
        started = time.monotonic()
        ask = Ask(self._record.node_id, engine_host(), self._engine.ports)
        self._leases = await self._coordinator.lease(self._record.replica_id, [ask])
        site = Site(tuple(map(Seat, self._leases)))
        plan = self._engine.plan(self._spec, site)
        child = LocalChild(plan.head, self._log_path)
        self._group = EngineGroup(self._engine, self._spec, plan, [child], self._on_event)
        self._change(ReplicaState.STARTING, ports=dict(site.head.ports))
        renewing = asyncio.create_task(self._renew())
        try:
            logger.info(f"Starting {self._spec.served_model_name} with {self._engine.name}.")
            await self._group.start()
        finally:
            renewing.cancel()
        self._change(ReplicaState.READY, url=self._group.url, phase="")
        await self._coordinator.renew(self._record, self._leases)
        logger.info(
            f"{self._spec.served_model_name} is ready after {time.monotonic() - started:.1f} s "
            f"at {self._group.url}."
        )

    def _on_event(self, event: EngineEvent) -> None:
        match event:
            case PhaseStarted(name=name, previous=previous, previous_seconds=seconds):
                took = f" ({previous} took {seconds:.1f} s)" if previous else ""
                logger.info(f"{self._spec.served_model_name}: {name}{took}")
                self._change(self._record.state, phase=name)
            case Warned(line=line):
                logger.warning(f"engine: {line}")
            case Ready():
                pass

    def _change(self, state: ReplicaState, **changes: object) -> None:
        since = self._record.since if state is self._record.state else time.time()
        self._record = replace(self._record, state=state, since=since, **changes)  # type: ignore[arg-type]

    async def _renew(self) -> None:
        """Tell the coordinator how we are: at every change, and often enough to keep the lease."""
        told, told_at = None, 0.0
        while True:
            now = time.monotonic()
            if (self._record, self._load) != told or now - told_at > RENEW_PERIOD_S:
                told, told_at = (self._record, self._load), now
                try:
                    kept = await self._coordinator.renew(self._record, self._leases, self._load)
                except RayscendError as error:
                    logger.warning(str(error))
                    continue
                if not kept:
                    await self._end(
                        PermanentEngineError(
                            "The lease of "
                            + ", ".join(
                                f"{lease.host} ports {sorted(lease.ports.values())}"
                                for lease in self._leases
                            )
                            + " has ended"
                        )
                    )
            await asyncio.sleep(0.1)

    async def _watch_progress(self) -> None:
        assert self._group is not None
        while True:
            await asyncio.sleep(STATS_PERIOD_S)
            try:
                stats = await self._group.stats()
            except (OSError, ValueError):
                continue
            self._metrics.update(stats)
            self._progress.update(stats, time.monotonic())
            load = Load(stats.running, stats.waiting, time.time())
            if load.requests or self._load.requests:  # the idle are silent
                self._load = load
            if self._progress.stalled and self._record.state is ReplicaState.READY:
                logger.warning(f"{self._progress.told} New requests go elsewhere.")
                self._change(ReplicaState.STALLED, cause=self._progress.told)
            elif not self._progress.stalled and self._record.state is ReplicaState.STALLED:
                logger.info("The engine yields tokens again.")
                self._change(ReplicaState.READY, cause="")

    async def _die_with_engine(self) -> None:
        assert self._group is not None
        await self._end(await self._group.ended())

    async def _end(self, error: RayscendError) -> None:
        """The engine is gone: so is this replica, at once; Serve makes another."""
        await self._tell_death(error)
        if self._group is not None:
            await self._group.stop(0)
        logging.shutdown()
        os._exit(1)

    async def _tell_death(self, error: RayscendError) -> None:
        logger.error(f"{self._spec.served_model_name}: {error}")
        for line in getattr(error, "tail", ()):
            logger.error(f"engine: {line}", extra={"log_to_stderr": False})
        self._change(self._record.state, cause=str(error))
        try:
            transient = getattr(error, "transient", True)
            await asyncio.wait_for(self._coordinator.died(self._record, transient), 3)
        except (RayscendError, TimeoutError):
            logger.warning("The coordinator could not be told; it will notice.")

    async def _drain(self, group: EngineGroup) -> None:
        """Serve what still comes for a moment, then wait until nothing runs or waits."""
        self._change(ReplicaState.DRAINING)
        deadline = time.monotonic() + self._settings.drain_timeout_s
        await asyncio.sleep(_LAST_REQUESTS_S)
        while time.monotonic() < deadline:
            try:
                stats = await group.stats()
            except (OSError, ValueError):
                return
            if not stats.running and not stats.waiting:
                return
            await asyncio.sleep(0.2)
        logger.warning(f"Requests still ran after {self._settings.drain_timeout_s:.0f} s; cut.")


def _version(spec: EngineSpec) -> str:
    """Names what is started: a new version's first try owes nothing to the old one's deaths."""
    return hashlib.sha256(repr(spec).encode()).hexdigest()[:12]
