"""The simulated engine as a process, for tests: started by its own launch plan, on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cluster.engines.base import EngineSpec, Stats
from cluster.engines.simulated.engine import SimulatedEngine, Switches
from tests.sites import one_node

ENGINE = SimulatedEngine()
ROOT = Path(__file__).parents[2]
FAST = ("--ttft=0.01", "--itl=0.001", "--max-model-len=2000")


def spec(*engine_args: str, **fields: Any) -> EngineSpec:
    return EngineSpec("simulated", "folder", "m", engine_args=engine_args, **fields)


@dataclass
class Process:
    url: str
    popen: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)


@contextlib.contextmanager
def launched(*engine_args: str, port: int = 0) -> Iterator[Process]:
    """Run the engine until its server line, or until it ends."""
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    plan = ENGINE.plan(spec(*engine_args), one_node(port))
    popen = subprocess.Popen(
        plan.head.argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )
    process = Process(plan.url, popen)
    assert popen.stdout
    try:
        for line in popen.stdout:
            process.lines.append(line.rstrip())
            if line.startswith("server on"):
                break
        yield process
    finally:
        popen.kill()
        popen.wait()
        popen.stdout.close()


@contextlib.asynccontextmanager
async def client_of(process: Process) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose failure switches are all turned off again at the end."""
    async with httpx.AsyncClient(base_url=process.url, timeout=20) as client:
        yield client
        (await client.post("/simulate", json=asdict(Switches()))).raise_for_status()


def completion(**more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "Hello", "max_tokens": 5, **more}


def chat(content: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


async def stats(client: httpx.AsyncClient) -> Stats:
    return ENGINE.stats((await client.get("/metrics")).text)


async def until(client: httpx.AsyncClient, **wanted: int) -> None:
    """Wait for counters to have these values."""
    async with asyncio.timeout(10):
        while wanted.items() - asdict(await stats(client)).items():
            await asyncio.sleep(0.01)


def events(raw: str) -> list[Any]:
    """Parse a stream; every event must be whole."""
    blocks = raw.removesuffix("\n\n").split("\n\n")
    return [
        data if (data := block.split("data: ", 1)[1]) == "[DONE]" else json.loads(data)
        for block in blocks
    ]
