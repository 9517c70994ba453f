"""The supervisor's client: an engine process from its start to its end, in one event loop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from cluster.engines import supervisor
from cluster.engines.base import Engine, EngineSpec, LaunchPlan, Stats
from cluster.engines.phases import (
    EngineOutput,
    PhaseStarted,
    ending,
    killed_from_outside,
    looks_like_warning,
)
from cluster.errors import EngineError, PermanentEngineError, TransientEngineError
from cluster.ports import listeners

logger = logging.getLogger(__name__)

LOG_MAX_BYTES = 64 << 20
LOG_BACKUPS = 3
GRACE_S = 3.0

_HEALTH_PERIOD_S = 0.15
_HEALTH_LIMIT = aiohttp.ClientTimeout(total=5)
_PROBE_LIMIT = aiohttp.ClientTimeout(total=None)  # the phase's limit holds
_STATS_LIMIT = aiohttp.ClientTimeout(total=2)
_CRASH_NOTICE_S = 3.0
_ORPHANS_GRACE_S = 0.2
_STOP_MARGIN_S = 3.0
_MESSAGE_LIMIT = 1 << 20


@dataclass(frozen=True)
class Warned:
    """The engine printed what looks like a warning or an error."""

    line: str


@dataclass(frozen=True)
class Ready:
    """The engine made its first token, `seconds` after its start."""

    seconds: float


EngineEvent = PhaseStarted | Warned | Ready


class EngineProcess:
    """One engine under its supervisor. Make it inside the running event loop; start it once.

    `log_path` receives the engine's whole output, `on_event` what is worth telling about it.
    """

    def __init__(
        self,
        engine: Engine,
        spec: EngineSpec,
        plan: LaunchPlan,
        log_path: Path,
        on_event: Callable[[EngineEvent], None],
    ) -> None:
        self.url = plan.url
        self.pid: int | None = None
        self._engine, self._spec, self._plan = engine, spec, plan.head
        self._log_path, self._on_event = log_path, on_event
        self.tree_id = uuid.uuid4().hex
        self._loop = asyncio.get_running_loop()
        self._output = EngineOutput(engine, time.monotonic())
        self._death: asyncio.Future[EngineError] = self._loop.create_future()
        self._supervisor: asyncio.subprocess.Process | None = None
        self._follower: asyncio.Task[None] | None = None
        self._limit: asyncio.TimerHandle | None = None
        self._http: aiohttp.ClientSession | None = None
        self._ready = self._stopping = False

    @property
    def supervisor_pid(self) -> int | None:
        return self._supervisor.pid if self._supervisor is not None else None

    @property
    def tail(self) -> tuple[str, ...]:
        """The last 50 lines of the engine's output."""
        return self._output.tail

    async def start(self) -> None:
        """Return when the engine has made one token. On an error or a cancel, nothing is left.

        Raises:
            EngineError: it ended, a phase passed its limit, or it answered the probe with an error.
        """
        begun = time.monotonic()
        try:
            await self._spawn()
            await self._first_token()
        except BaseException:
            await asyncio.shield(self.stop(GRACE_S))
            raise
        self._ready = True
        self._output.ready()
        self._tell(Ready(time.monotonic() - begun))

    async def ended(self) -> EngineError:
        """Wait until the engine dies by itself; return why. A `stop` is no death."""
        return await asyncio.shield(self._death)

    async def stop(self, grace_s: float) -> None:
        """End the engine: TERM, and KILL after `grace_s`. Return when its whole tree is gone."""
        if not self._ready:
            self._die(f"{self._engine.name} was stopped before it was ready", transient=True)
        self._stopping = True
        if self._supervisor is None or self._follower is None:
            return
        self._send({"stop": grace_s})
        done, _ = await asyncio.wait({self._follower}, timeout=grace_s + _STOP_MARGIN_S)
        if not done:
            await self._end_orphans(0)
            await asyncio.wait({self._follower}, timeout=_STOP_MARGIN_S)

    async def stats(self) -> Stats:
        """The engine's counters now.

        Raises:
            OSError: it did not answer (TimeoutError: within 2 s).
            ValueError: it answered with something else.
        """
        if self._http is None or self._http.closed:
            raise ConnectionError(f"{self._engine.name} at {self.url} does not run")
        try:
            async with self._http.get(f"{self.url}/metrics", timeout=_STATS_LIMIT) as answer:
                if answer.status != 200:
                    raise ValueError(f"GET {answer.url} was answered with {answer.status}")
                return self._engine.stats(await answer.text())
        except aiohttp.ClientError as error:
            raise ConnectionError(f"GET {self.url}/metrics failed: {error}") from error

    async def _spawn(self) -> None:
        marks = {supervisor.TREE_ID: self.tree_id, "SPT_NOENV": "1"}
        kept = {k: v for k, v in os.environ.items() if k not in self._plan.unset_env}
        try:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            with self._log_path.open("ab") as log:
                self._supervisor = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", str(Path(supervisor.__file__).resolve())),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, **marks},
                    start_new_session=True,
                    limit=_MESSAGE_LIMIT,
                )
        except OSError as error:
            raise PermanentEngineError(f"The supervisor could not be started: {error}") from error
        self._http = aiohttp.ClientSession()
        self._follower = asyncio.create_task(self._follow(self._supervisor))
        self._tell(PhaseStarted(self._output.phase.name))
        self._watch_limit()
        self._send(
            {
                "argv": self._plan.argv,
                "env": {**kept, **self._plan.env, **marks},
                "log": str(self._log_path),
                "log_max_bytes": LOG_MAX_BYTES,
                "log_backups": LOG_BACKUPS,
                "grace_s": GRACE_S,
            }
        )

    def _send(self, message: dict[str, Any]) -> None:
        assert self._supervisor is not None
        assert self._supervisor.stdin is not None
        if not self._supervisor.stdin.is_closing():
            self._supervisor.stdin.write(json.dumps(message).encode() + b"\n")

    async def _first_token(self) -> None:
        """Wait for the answer to the probe, or for what makes it impossible."""
        answering = asyncio.create_task(self._answer())
        try:
            first: set[asyncio.Future[Any]] = {answering, self._death}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._death.done():
                raise self._death.result()
            answering.result()
        finally:
            answering.cancel()
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

    async def _answer(self) -> None:
        assert self._http is not None
        while not await self._healthy():
            await asyncio.sleep(_HEALTH_PERIOD_S)
        self._begin(self._output.first_token(time.monotonic()))
        await self._meet_no_stranger()
        probe = self._engine.probe(self._spec)
        try:
            async with self._http.post(
                self.url + probe.path, json=dict(probe.body), timeout=_PROBE_LIMIT
            ) as answer:
                if answer.status == 200:
                    await answer.read()
                    return
                told = f"was answered with {answer.status}: {(await answer.text())[:500]}"
        except aiohttp.ClientError as error:
            told = f"failed: {error}"
        # An engine that is about to die of this says more with its exit.
        await asyncio.sleep(_CRASH_NOTICE_S)
        raise self._output.explain(
            f"{self._engine.name}: its first request, POST {probe.path}, {told}",
            remedy=f"its output is in {self._log_path}",
        )

    async def _meet_no_stranger(self) -> None:
        """Make sure that it was our engine that answered.

        vLLM binds with SO_REUSEPORT: a program that took the port after it was tested does not
        stop it, and the two would share its connections.
        """
        port = urlsplit(self.url).port
        assert port is not None
        found = await asyncio.to_thread(listeners, port)
        ours = await asyncio.to_thread(supervisor.processes_of, self.tree_id)
        if strangers := {pid: name for pid, name in found.items() if pid not in ours}:
            raise TransientEngineError(
                f"{self._engine.name}: port {port} is also held by "
                + ", ".join(f"process {pid} ({name})" for pid, name in strangers.items()),
                "a stranger took it after it was leased",
                "nothing to do: the next try takes other ports",
                self.tail,
            )

    async def _healthy(self) -> bool:
        assert self._http is not None
        try:
            async with self._http.get(f"{self.url}/health", timeout=_HEALTH_LIMIT) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        """Take the supervisor's messages until it and the whole tree are gone."""
        assert process.stdout is not None
        try:
            async for message in process.stdout:
                self._on_message(json.loads(message))
            await self._end_orphans(_ORPHANS_GRACE_S)
            self._die("The supervisor was killed, and its engine with it", transient=True)
            await process.wait()
        finally:
            if self._http is not None:
                await self._http.close()

    async def _end_orphans(self, grace_s: float) -> None:
        """End by its mark what a killed supervisor left; after an orderly end there is nothing."""
        left = await asyncio.to_thread(supervisor.end_processes, self.tree_id, grace_s)
        if left:
            logger.error(f"Processes {left} of {self._engine.name} outlive SIGKILL.")

    def _on_message(self, message: dict[str, Any]) -> None:
        now = time.monotonic()
        match message:
            case {"line": str(text)}:
                self._begin(self._output.add(text, now))
                if looks_like_warning(text):
                    self._tell(Warned(text))
            case {"progress": str(text)}:
                self._begin(self._output.glance(text, now))
            case {"dropped": int(count)}:
                self._tell(Warned(f"{count} lines came too fast and are only in {self._log_path}"))
            case {"started": int(pid)}:
                self.pid = pid
            case {"failed": str(why)}:
                self._die("The engine could not be started", why)
            case {"exited": int(code)}:
                self._on_exit(code)

    def _on_exit(self, code: int) -> None:
        during = "" if self._ready else f' in the phase "{self._output.phase.name}"'
        self._die(
            f"{self._engine.name} {ending(code)}{during}; its output is in {self._log_path}",
            transient=self._ready or killed_from_outside(code),
        )

    def _die(self, saw: str, why: str = "", transient: bool = False) -> None:
        if not self._death.done() and not self._stopping:
            self._death.set_result(self._output.explain(saw, why, transient=transient))

    def _begin(self, started: PhaseStarted | None) -> None:
        if started is not None and not self._ready:
            self._tell(started)
            self._watch_limit()

    def _watch_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        left = self._output.ends_at - time.monotonic()
        self._limit = self._loop.call_later(left, self._pass_limit)

    def _pass_limit(self) -> None:
        if not self._death.done():
            self._death.set_result(self._output.overdue())

    def _tell(self, event: EngineEvent) -> None:
        try:
            self._on_event(event)
        except Exception:
            logger.exception("on_event failed")


__all__ = ["EngineEvent", "EngineProcess", "PhaseStarted", "Ready", "Warned"]
