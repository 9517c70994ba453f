"""One process of an engine, and its client of the supervisor: start, what it says, stop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from cluster.engines import supervisor
from cluster.engines.base import ProcessPlan
from cluster.errors import PermanentEngineError
from cluster.ports import listeners

logger = logging.getLogger(__name__)

LOG_MAX_BYTES = 64 << 20
LOG_BACKUPS = 3
GRACE_S = 3.0

_ORPHANS_GRACE_S = 0.2
_STOP_MARGIN_S = 3.0
_MESSAGE_LIMIT = 1 << 20

Message = Mapping[str, Any]
"""What the supervisor says (see there), and {"lost": why} where it can say nothing any more."""
Hear = Callable[[Message], None]


class Child(Protocol):
    """One process of an engine, on this node or another. `log` is where its output goes."""

    log: str

    async def start(self, hear: Hear) -> None:
        """Give the order to start; `hear` gets every message until `exited`, `failed` or `lost`.

        Raises:
            EngineError: not even the order could be given.
        """

    async def stop(self, grace_s: float) -> None:
        """End it: TERM, and KILL after `grace_s`. Return when its whole tree is gone."""

    async def strangers(self, port: int) -> Mapping[int, str]:
        """Processes that listen on `port` of its node and are not of its tree: names by pid."""


class LocalChild:
    """A process on this node, under its supervisor. Make it inside the running event loop."""

    def __init__(self, plan: ProcessPlan, log: Path) -> None:
        self.log = str(log)
        self.tree_id = uuid.uuid4().hex
        self._plan, self._path = plan, log
        self._supervisor: asyncio.subprocess.Process | None = None
        self._follower: asyncio.Task[None] | None = None

    @property
    def supervisor_pid(self) -> int | None:
        return self._supervisor.pid if self._supervisor is not None else None

    async def start(self, hear: Hear) -> None:
        marks = {supervisor.TREE_ID: self.tree_id, "SPT_NOENV": "1"}
        kept = {k: v for k, v in os.environ.items() if k not in self._plan.unset_env}
        try:
            self._write_files()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as log:
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
            self._remove_files()
            raise PermanentEngineError(f"The supervisor could not be started: {error}") from error
        self._follower = asyncio.create_task(self._follow(self._supervisor, hear))
        self._send(
            {
                "argv": self._plan.argv,
                "env": {**kept, **self._plan.env, **marks},
                "log": self.log,
                "log_max_bytes": LOG_MAX_BYTES,
                "log_backups": LOG_BACKUPS,
                "grace_s": GRACE_S,
            }
        )

    async def stop(self, grace_s: float) -> None:
        if self._follower is None:
            return
        self._send({"stop": grace_s})
        done, _ = await asyncio.wait({self._follower}, timeout=grace_s + _STOP_MARGIN_S)
        if not done:
            await self._end_orphans(0)
            await asyncio.wait({self._follower}, timeout=_STOP_MARGIN_S)

    async def strangers(self, port: int) -> Mapping[int, str]:
        found = await asyncio.to_thread(listeners, port)
        ours = await asyncio.to_thread(supervisor.processes_of, self.tree_id)
        return {pid: name for pid, name in found.items() if pid not in ours}

    async def gone(self) -> None:
        """Wait until the started process, its tree and its supervisor are gone."""
        if self._follower is not None:
            await asyncio.wait({self._follower})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._supervisor is not None
        assert self._supervisor.stdin is not None
        if not self._supervisor.stdin.is_closing():
            self._supervisor.stdin.write(json.dumps(message).encode() + b"\n")

    async def _follow(self, process: asyncio.subprocess.Process, hear: Hear) -> None:
        """Hand on the supervisor's messages until it and the whole tree are gone."""
        assert process.stdout is not None
        ended = False
        try:
            async for line in process.stdout:
                message = json.loads(line)
                ended = ended or not message.keys().isdisjoint(("exited", "failed"))
                hear(message)
            await self._end_orphans(_ORPHANS_GRACE_S)
            if not ended:
                hear({"lost": "The supervisor was killed, and its engine with it"})
            await process.wait()
        finally:
            self._remove_files()

    async def _end_orphans(self, grace_s: float) -> None:
        """End by its mark what a killed supervisor left; after an orderly end there is nothing."""
        left = await asyncio.to_thread(supervisor.end_processes, self.tree_id, grace_s)
        if left:
            logger.error(f"Processes {left} of {self._plan.name} outlive SIGKILL.")

    def _write_files(self) -> None:
        for path, text in self._plan.files.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).unlink(missing_ok=True)
            # Engines refuse configuration that others can read, and it may hold secrets.
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)

    def _remove_files(self) -> None:
        for path in self._plan.files:
            Path(path).unlink(missing_ok=True)
