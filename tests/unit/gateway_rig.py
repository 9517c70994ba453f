"""A gateway under a real server, in front of engines that are real sockets with a script each."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn
from yarl import URL

from cluster.directory import Picture, ReplicaRecord, ReplicaState
from serve_apps.fleet import Fleet
from serve_apps.gateway import GatewayApp
from serve_apps.limits import GatewayLimits
from serve_apps.observer import Observer

BODY = b'{"model": "m", "stream": true}'
EVENTS = b'data: {"a": 1}\n\ndata: {"b": "\xc3\xa9"}\n\ndata: [DONE]\n\n'
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\nX-Engine: yes\r\n\r\n"
)

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Engine:
    """A server that notes what it is asked, and answers by its script, once a request."""

    script: Script
    requests: list[Request] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(Request(head[0], headers, body))
                await self.script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        finally:
            writer.close()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def stream(*pieces: bytes) -> list[bytes]:
    return [STREAM_HEAD, *map(chunk, pieces), b"0\r\n\r\n"]


def says(*pieces: bytes) -> Script:
    """Send `pieces` one by one; the connection stays open."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.002)

    return script


def breaks(*pieces: bytes) -> Script:
    """Send `pieces`, then close the connection."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(*pieces)(reader, writer)
        raise ConnectionAbortedError

    return script


def hangs(*pieces: bytes) -> Script:
    """Send `pieces`, then nothing until the client is gone."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(*pieces)(reader, writer)
        await reader.readexactly(1)

    return script


def in_turn(*scripts: Script) -> Script:
    """One script for each request."""
    rest = iter(scripts)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await next(rest)(reader, writer)

    return script


ANSWERS = says(whole(b'{"ok": true}'))


def record(name: str, url: str, **fields: Any) -> ReplicaRecord:
    facts: dict[str, Any] = {"model": "m", "state": ReplicaState.READY} | fields
    return ReplicaRecord(
        replica_id=name,
        app="app",
        deployment="d",
        version="1",
        engine="simulated",
        node_id="n",
        since=0.0,
        url=url,
        **facts,
    )


@dataclass
class Gateway:
    app: GatewayApp
    fleet: Fleet
    client: aiohttp.ClientSession
    port: int

    async def post(
        self, body: bytes = BODY, path: str | URL = "/v1/completions", **options: Any
    ) -> tuple[int, dict[str, str], bytes]:
        async with self.client.post(path, data=io.BytesIO(body), **options) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return response.status, headers, await response.read()

    @property
    def in_flight(self) -> int:
        replicas = (r for model in self.fleet.models() for r in self.fleet.replicas(model))
        return sum(replica.in_flight for replica in replicas)


@asynccontextmanager
async def gateway(
    *engines: Engine,
    models: Sequence[str] = ("m",),
    records: Sequence[ReplicaRecord] = (),
    observer: Observer | None = None,
    **limits: Any,
) -> AsyncIterator[Gateway]:
    """A gateway in front of `engines`, named r0, r1, …; afterwards nothing may be in flight."""
    bounds = GatewayLimits(**limits)
    fleet = Fleet(models, bounds, observer=observer)
    app = GatewayApp(fleet, bounds, observer=observer)
    async with AsyncExitStack() as stack:
        for engine in engines:
            server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            engine.url = url_of(server.sockets[0])
        picked = [record(f"r{i}", engine.url) for i, engine in enumerate(engines)]
        fleet.update(Picture("e", 1, True, (*picked, *records)))
        port = await stack.enter_async_context(served(app))
        client = await stack.enter_async_context(
            aiohttp.ClientSession(f"http://127.0.0.1:{port}", auto_decompress=False)
        )
        made = Gateway(app, fleet, client, port)
        yield made
        await until(lambda: made.in_flight == 0)
        assert all(fleet.queued(model) == 0 for model in models)


@asynccontextmanager
async def served(app: GatewayApp) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on")
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started)
    yield listener.getsockname()[1]
    server.should_exit = True
    await running
    listener.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def refused_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return url_of(listener)


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error
