"""A running engine: all processes of a launch plan, from their start to their end, as one.

One of them gone, all are gone: what the others would do alone is wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from cluster.engines.base import Engine, EngineSpec, LaunchPlan, Stats
from cluster.engines.child import GRACE_S, Child, Message
from cluster.engines.phases import (
    EngineOutput,
    PhaseStarted,
    ending,
    killed_from_outside,
    looks_like_warning,
)
from cluster.errors import EngineError, TransientEngineError

logger = logging.getLogger(__name__)

_HEALTH_PERIOD_S = 0.15
_HEALTH_LIMIT = aiohttp.ClientTimeout(total=5)
_PROBE_LIMIT = aiohttp.ClientTimeout(total=None)  # the phase's limit holds
_STATS_LIMIT = aiohttp.ClientTimeout(total=2)
_CRASH_NOTICE_S = 3.0


@dataclass(frozen=True)
class Warned:
    """The engine printed what looks like a warning or an error."""

    line: str


@dataclass(frozen=True)
class Ready:
    """The engine made its first token, `seconds` after its start."""

    seconds: float


EngineEvent = PhaseStarted | Warned | Ready


class EngineGroup:
    """The processes of one engine. Make it inside the running event loop; start it once.

    `children` run `plan.processes`, in this order; `on_event` hears what is worth telling.
    """

    def __init__(
        self,
        engine: Engine,
        spec: EngineSpec,
        plan: LaunchPlan,
        children: Sequence[Child],
        on_event: Callable[[EngineEvent], None],
    ) -> None:
        self.url = plan.url
        self.pid: int | None = None
        self._engine, self._spec, self._plan = engine, spec, plan
        self.children, self._on_event = children, on_event
        self._loop = asyncio.get_running_loop()
        self._output = EngineOutput(engine, time.monotonic())
        self._death: asyncio.Future[EngineError] = self._loop.create_future()
        self._limit: asyncio.TimerHandle | None = None
        self._http = aiohttp.ClientSession()
        self._ready = self._stopping = False
        self._ending: asyncio.Task[None] | None = None

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
            await self._start_children()
            await self._first_token()
        except BaseException:
            await asyncio.shield(self.stop(GRACE_S))
            raise
        self._ready = True
        self._output.ready()
        self._tell(Ready(time.monotonic() - begun))

    async def ended(self) -> EngineError:
        """Wait until a process dies by itself; return why. A `stop` is no death."""
        return await asyncio.shield(self._death)

    async def stop(self, grace_s: float) -> None:
        """End all: TERM, and KILL after `grace_s`. Return when every process's tree is gone."""
        if not self._ready:
            self._die(f"{self._engine.name} was stopped before it was ready", transient=True)
        self._stopping = True
        await asyncio.gather(*(child.stop(grace_s) for child in self.children))
        await self._http.close()

    async def stats(self) -> Stats:
        """The engine's counters now.

        Raises:
            OSError: it did not answer (TimeoutError: within 2 s).
            ValueError: it answered with something else.
        """
        if self._http.closed or self._death.done():
            raise ConnectionError(f"{self._engine.name} at {self.url} does not run")
        try:
            async with self._http.get(f"{self.url}/metrics", timeout=_STATS_LIMIT) as answer:
                if answer.status != 200:
                    raise ValueError(f"GET {answer.url} was answered with {answer.status}")
                return self._engine.stats(await answer.text())
        except aiohttp.ClientError as error:
            raise ConnectionError(f"GET {self.url}/metrics failed: {error}") from error

    async def _start_children(self) -> None:
        self._tell(PhaseStarted(self._output.phase.name))
        self._watch_limit()
        for index, child in enumerate(self.children):
            await child.start(partial(self._hear, index))

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
            remedy=f"its output is in {self._head.log}",
        )

    @property
    def _head(self) -> Child:
        return self.children[self._plan.head_index]

    async def _meet_no_stranger(self) -> None:
        """Make sure that it was our engine that answered.

        vLLM binds with SO_REUSEPORT: a program that took the port after it was tested does not
        stop it, and the two would share its connections.
        """
        port = urlsplit(self.url).port
        assert port is not None
        if strangers := await self._head.strangers(port):
            raise TransientEngineError(
                f"{self._engine.name}: port {port} is also held by "
                + ", ".join(f"process {pid} ({name})" for pid, name in strangers.items()),
                "a stranger took it after it was leased",
                "nothing to do: the next try takes other ports",
                self.tail,
            )

    async def _healthy(self) -> bool:
        try:
            async with self._http.get(f"{self.url}/health", timeout=_HEALTH_LIMIT) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _hear(self, index: int, message: Message) -> None:
        """Take what process `index` says; the head's lines tell phases, all lines tell causes."""
        now, head = time.monotonic(), index == self._plan.head_index
        match message:
            case {"line": str(text)}:
                if head:
                    self._begin(self._output.add(text, now))
                else:
                    self._output.overhear(self._plan.processes[index].name, text)
                if looks_like_warning(text):
                    self._tell(Warned(text))
            case {"progress": str(text)} if head:
                self._begin(self._output.glance(text, now))
            case {"dropped": int(count)}:
                log = self.children[index].log
                self._tell(Warned(f"{count} lines came too fast and are only in {log}"))
            case {"started": int(pid)} if head:
                self.pid = pid
            case {"failed": str(why)}:
                self._die(f"{self._called(index)} could not be started", why)
            case {"lost": str(why)}:
                self._die(why, transient=True)
            case {"exited": int(code)}:
                self._on_exit(index, code)

    def _called(self, index: int) -> str:
        """How a process is called before others: the engine's name, and which where it has many."""
        engine = self._engine.name
        many = len(self._plan.processes) > 1
        return f"{engine}, {self._plan.processes[index].name}," if many else engine

    def _on_exit(self, index: int, code: int) -> None:
        during = "" if self._ready else f' in the phase "{self._output.phase.name}"'
        log = self.children[index].log
        self._die(
            f"{self._called(index)} {ending(code)}{during}; its output is in {log}",
            transient=self._ready or killed_from_outside(code),
        )

    def _die(self, saw: str, why: str = "", transient: bool = False) -> None:
        if not self._death.done() and not self._stopping:
            self._death.set_result(self._output.explain(saw, why, transient=transient))
            self._ending = self._loop.create_task(self._end_others())

    async def _end_others(self) -> None:
        """They wait for the dead one, and hold devices while they do."""
        await asyncio.gather(*(child.stop(GRACE_S) for child in self.children))

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


__all__ = ["EngineEvent", "EngineGroup", "PhaseStarted", "Ready", "Warned"]
