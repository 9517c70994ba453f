"""One request to one engine server and back: pick, connect, copy bytes, try another replica.

HTTP clients and handle calls come through the same `Relay.open`, so that queueing, retries and
counts stand once.
"""

from __future__ import annotations

import io
import logging
import socket
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from yarl import URL

from cluster.errors import ReplicaLost
from serve_apps.fleet import Fleet, Replica
from serve_apps.limits import GatewayLimits
from serve_apps.observer import Observer, RequestTrace
from serve_apps.openai import prompt_of
from serve_apps.prefixes import Prefix
from serve_apps.stream import SSEEvents

logger = logging.getLogger(__name__)

Headers = Sequence[tuple[bytes, bytes]]

# RFC 9110, 7.6.1: these belong to one connection.
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer"
    b" transfer-encoding upgrade".split()
)
# The engine's business is neither who the client is, nor how to pack answers: events must be read.
_NOT_FOR_ENGINES = _HOP_BY_HOP | frozenset(
    b"host content-length expect accept-encoding authorization cookie x-request-id".split()
)
# The server in front of the client writes its own.
_NOT_FOR_CLIENTS = _HOP_BY_HOP | frozenset(b"date server x-request-id".split())

_JSON: Headers = [(b"content-type", b"application/json")]
_NO_AUTO_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")

# A host that vanished answers nothing, not even with a reset: the kernel asks after 10 s of
# silence, and gives it up 10 s later.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2}
# Shorter than the 5 s after which uvicorn closes idle connections, so that few are found closed.
_IDLE_CONNECTION_S = 4

_BROKEN = (aiohttp.ClientError, OSError)
_NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


@dataclass(frozen=True)
class Answer:
    """What an engine answers.

    `headers` are end-to-end ones. `body` yields the engine's bytes, of an event stream
    (`is_stream`) whole events only, and raises ReplicaLost if the engine breaks off.
    """

    status: int
    headers: Headers
    body: AsyncIterator[bytes]
    is_stream: bool
    replica_id: str


@dataclass
class _Call:
    """One request, as it is sent to one replica after another until one answers."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    excluded: set[str] = field(default_factory=set)
    breaks: int = 0
    on_used_connection: bool = False


class Relay:
    """Connections from one gateway process to the engine servers of its fleet."""

    def __init__(self, fleet: Fleet, limits: GatewayLimits, observer: Observer) -> None:
        self._fleet = fleet
        self._limits = limits
        self._observer = observer
        self._connections: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def open(
        self,
        model: str,
        path: str,
        body: bytes,
        request_id: str,
        *,
        method: str = "POST",
        headers: Headers = _JSON,
    ) -> AsyncIterator[Answer]:
        """Send a request to a replica of `model` and give its answer.

        The answer is given once the engine has sent a first piece of its body (all of it, where
        it tells the length beforehand). Until then a replica that refuses or breaks the
        connection is replaced by another. Leaving the context early closes the connection, by
        which the engine knows that nobody waits any more.

        Args:
            model: the name of a model of the fleet.
            path: path and query, in the encoding of URLs.
            body: the request's body, passed on as it is.
            request_id: goes to the engine as `X-Request-Id`.
            method: the HTTP method.
            headers: the client's; those that are not for engines are left out.

        Raises:
            ModelNotFound, QueueFull, NoReplicaReady: as `Fleet.reserve`.
            ReplicaLost: no replica is left to try.
        """
        self._fleet.replicas(model)  # A name that a client invented is nobody's request.
        call = _Call(method, path, _for_engine(headers, request_id), body)
        prefix = Prefix.of(prompt_of(path, body, Prefix.LIMIT))
        with self._observer.following(model) as trace:
            while True:
                trace.asks()
                async with self._fleet.reserve(model, call.excluded, prefix) as replica:
                    trace.stops_asking()
                    try:
                        response, first = await self._begin(replica, call)
                    except _BROKEN as error:
                        logger.warning("%s: replica %s: %s", request_id, replica.id, _words(error))
                        self._blame(replica, call, error)
                        continue
                    try:
                        yield self._answer(replica, response, first, trace)
                        return
                    finally:
                        response.close()

    async def close(self) -> None:
        """Close every connection."""
        if self._connections:
            await self._connections.close()

    async def _begin(self, replica: Replica, call: _Call) -> tuple[aiohttp.ClientResponse, bytes]:
        """Return the response and the first piece of its body."""
        call.on_used_connection = False
        response = await self._session().request(
            call.method,
            URL(replica.record.url.rstrip("/") + call.path, encoded=True),
            headers=call.headers,
            data=_payload(call.body),
            allow_redirects=False,
            skip_auto_headers=_NO_AUTO_HEADERS,
            trace_request_ctx=call,
        )
        try:
            content = response.content
            whole = "content-length" in response.headers and not _is_stream(response)
            return response, await (content.read() if whole else content.readany())
        except BaseException:
            response.close()
            raise

    def _blame(self, replica: Replica, call: _Call, error: Exception) -> None:
        """Note what a failed attempt says of its replica; raise ReplicaLost if it was the last."""
        call.breaks += not isinstance(error, _NEVER_SENT)
        if not call.on_used_connection:
            call.excluded.add(replica.id)
            self._fleet.cool_down(replica)
        others = self._fleet.offers(replica.record.model, call.excluded)
        if call.breaks >= self._limits.max_attempts or not others:
            raise _lost(replica, "before it answered", error) from error

    def _answer(
        self,
        replica: Replica,
        response: aiohttp.ClientResponse,
        first: bytes,
        trace: RequestTrace,
    ) -> Answer:
        is_stream = _is_stream(response)
        trace.first = time.monotonic() if is_stream else 0.0
        trace.outcome = "engine_error" if response.status >= 400 else ""
        pieces = self._pieces(replica, response, first)
        drop = _NOT_FOR_CLIENTS | ({b"content-length"} if is_stream else set())
        return Answer(
            status=response.status,
            headers=_end_to_end(response.raw_headers, drop),
            body=_whole_events(replica, pieces, trace) if is_stream else pieces,
            is_stream=is_stream,
            replica_id=replica.id,
        )

    async def _pieces(
        self, replica: Replica, response: aiohttp.ClientResponse, data: bytes
    ) -> AsyncIterator[bytes]:
        """Yield what has arrived, as soon as anything has."""
        try:
            while data:
                yield data
                data = await response.content.readany()
        except _BROKEN as error:
            self._fleet.cool_down(replica)
            raise _lost(replica, "in the middle of its answer", error) from error

    def _session(self) -> aiohttp.ClientSession:
        """Make the session on the first call: it belongs to the running event loop."""
        if self._connections is None:
            reuse = aiohttp.TraceConfig()
            reuse.on_connection_reuseconn.append(_note_used_connection)
            self._connections = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=_IDLE_CONNECTION_S, socket_factory=_socket
                ),
                timeout=aiohttp.ClientTimeout(sock_connect=self._limits.connect_timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trace_configs=[reuse],
            )
        return self._connections


async def _note_used_connection(session: aiohttp.ClientSession, trace: Any, params: object) -> None:
    """A connection kept from before may have been closed meanwhile: no fault of the replica."""
    trace.trace_request_ctx.on_used_connection = True


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    """Let long bodies be sent piece by piece, as aiohttp asks for above 1 MiB."""
    return io.BytesIO(body) if len(body) > 2**20 else body or None


def _socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = address
    connection = socket.socket(family, kind, protocol)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return connection


def _is_stream(response: aiohttp.ClientResponse) -> bool:
    return response.content_type == "text/event-stream"


async def _whole_events(
    replica: Replica, pieces: AsyncIterator[bytes], trace: RequestTrace
) -> AsyncIterator[bytes]:
    decoder = SSEEvents()
    try:
        async for data in pieces:
            if events := decoder.decode(data):
                trace.saw(events)
                yield events
        tail = decoder.flush()
        if tail.endswith(b"\n"):
            yield tail
        elif tail:
            raise _lost(replica, "in the middle of an event", EOFError())
    except ReplicaLost as error:  # who has begun a stream ends it in good order all the same
        trace.outcome = error.code
        raise


def _end_to_end(headers: Headers, drop: Collection[bytes]) -> Headers:
    lowered = [(name.lower(), value) for name, value in headers]
    named = {
        word.strip().lower()
        for name, value in lowered
        if name == b"connection"
        for word in value.split(b",")
    }
    return [(name, value) for name, value in lowered if name not in drop and name not in named]


def _for_engine(headers: Headers, request_id: str) -> list[tuple[str, str]]:
    kept = list(_end_to_end(headers, _NOT_FOR_ENGINES))
    kept += [(b"x-request-id", request_id.encode()), (b"accept-encoding", b"identity")]
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in kept]


def _words(error: Exception) -> str:
    """What the system says of a connection; errors of parsing quote what the engine sent."""
    return str(error) if isinstance(error, OSError) else type(error).__name__


def _lost(replica: Replica, when: str, error: Exception) -> ReplicaLost:
    return ReplicaLost(
        f'replica "{replica.id}" of model "{replica.record.model}" broke off {when}',
        f"its engine ended or cannot be reached ({type(error).__name__})",
        "send the request again",
    )
