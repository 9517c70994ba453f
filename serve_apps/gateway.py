"""The ASGI application between HAProxy and the engines: bounds, names the model, relays."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any
from urllib.parse import quote

from cluster.errors import (
    BodyTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    ReplicaLost,
    RequestError,
    RouteNotFound,
)
from serve_apps import openai
from serve_apps.exposition import CONTENT_TYPE
from serve_apps.fleet import Fleet
from serve_apps.limits import GatewayLimits
from serve_apps.observer import Observer
from serve_apps.relay import Headers, Relay
from serve_apps.scrape import scrape

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_CLIENT_GONE_STATUS = 499  # nginx's word for it
_REQUEST_ID = re.compile(r"[\w.:=/+@-]{1,128}", re.ASCII)


class GatewayApp:
    """Serves the models of a fleet over HTTP.

    `relay.open` is the same way to the engines for callers in this process. `echo_request_id` is
    off where the server in front gives answers their X-Request-Id (Ray Serve does). `observer` is
    told what happens.
    """

    def __init__(
        self,
        fleet: Fleet,
        limits: GatewayLimits | None = None,
        echo_request_id: bool = True,
        observer: Observer | None = None,
    ) -> None:
        self._fleet = fleet
        self._observer = observer or Observer()
        self._limits = limits or GatewayLimits()
        self._created = int(time.time())
        self._echo_request_id = echo_request_id
        self.relay = Relay(fleet, self._limits, self._observer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(_Exchange(scope, receive, send, self._echo_request_id))
            case "lifespan":
                await self._lifespan(receive, send)
            case "websocket":
                await send({"type": "websocket.close", "code": 1008})

    async def close(self) -> None:
        """Close the connections to the engines."""
        await self.relay.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, exchange: _Exchange) -> None:
        try:
            await self._respond(exchange)
            if not exchange.told:
                logger.info("%s done", exchange, extra={"log_to_stderr": False})
        except _ClientGone:
            logger.info("%s the client went away", exchange)
        except RequestError as error:
            await exchange.fail(error)
        except Exception as error:
            logger.exception("%s the gateway failed", exchange)
            await exchange.fail(RequestError(f"the gateway failed: {type(error).__name__}"))
        finally:
            self._observer.answered(exchange.status or _CLIENT_GONE_STATUS)

    async def _respond(self, exchange: _Exchange) -> None:
        route = openai.route(exchange.path)
        if exchange.method not in openai.ROUTES[route]:
            allowed = " or ".join(openai.ROUTES[route])
            raise MethodNotAllowed(
                f"{exchange.path} does not take {exchange.method}", remedy=f"use {allowed}"
            )
        if route == "/health":
            await self._health(exchange)
        elif route == "/metrics":
            await self._metrics(exchange)
        elif route == "/v1/models":
            await exchange.json(200, openai.model_list(self._fleet.models(), self._created))
        elif route == "/v1/models/":
            name = exchange.path.removeprefix(route)
            self._fleet.replicas(name)  # raises what is due for an unknown model
            await exchange.json(200, openai.model_card(name, self._created))
        else:
            body = await exchange.body(self._limits.max_body_bytes)
            named = exchange.method == "POST" and not route.endswith("/")
            model = self._model(exchange, body, named)
            await exchange.while_connected(self._pass_on(exchange, model, body))

    async def _health(self, exchange: _Exchange) -> None:
        ready = {
            model: {
                "ready": sum(replica.ready for replica in self._fleet.replicas(model)),
                "told": f"{model} {self._fleet.told(model)}",
            }
            for model in self._fleet.models()
        }
        healthy = any(model["ready"] for model in ready.values())
        status, word = (200, "ready") if healthy else (503, "no replica is ready")
        await exchange.json(status, {"status": word, "models": ready})

    async def _metrics(self, exchange: _Exchange) -> None:
        replicas = [r for model in self._fleet.models() for r in self._fleet.replicas(model)]
        text = await scrape(replicas, self._observer.exposition(), self._observer.name)
        await exchange.whole(200, CONTENT_TYPE, text.encode())

    def _model(self, exchange: _Exchange, body: bytes, named: bool) -> str:
        """Return the model to ask: where the body names none, the only one there is."""
        model = None
        if named:
            content_type = exchange.header(b"content-type")
            model = openai.read_model(body, content_type, self._limits.max_json_depth)
        if model is not None:
            return model
        if len(self._fleet.models()) == 1:
            return self._fleet.models()[0]
        served = f"Served models: {', '.join(self._fleet.models())}"
        if named:
            raise InvalidRequest("the body names no model", remedy=served, param="model")
        raise RouteNotFound(f"{exchange.path} does not tell which model it is for", served)

    async def _pass_on(self, exchange: _Exchange, model: str, body: bytes) -> None:
        async with self.relay.open(
            model,
            exchange.target,
            body,
            exchange.request_id,
            method=exchange.method,
            headers=exchange.headers,
        ) as answer:
            if answer.status >= 400:
                exchange.log(answer.status, f"replica {answer.replica_id} answered {answer.status}")
            await exchange.start(answer.status, answer.headers)
            try:
                async for data in answer.body:
                    await exchange.write(data)
            except ReplicaLost as error:
                if not answer.is_stream:
                    raise
                exchange.log(error.status, str(error))
                await exchange.write(openai.error_event(error))
            await exchange.write(b"", more=False)


class _ClientGone(Exception):
    """Nobody waits for the answer any more."""


class _Exchange:
    """One HTTP request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, echo_request_id: bool) -> None:
        self._echo_request_id = echo_request_id
        self._receive, self._send = receive, send
        self.status = 0  # until the answer begins
        self.told = False
        self.method: str = scope["method"]
        self.path: str = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
        query = scope.get("query_string", b"").decode("latin-1")
        self.target = quote(self.path, safe="/:@!$&'()*+,;=~") + (query and f"?{query}")
        self.headers: Headers = scope["headers"]
        given = self.header(b"x-request-id")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

    def __str__(self) -> str:
        return f"{self.request_id}: {self.method} {quote(self.path)}:"

    def header(self, name: bytes) -> str:
        """Return the value of a header, or an empty string."""
        return next((v.decode("latin-1") for k, v in self.headers if k == name), "")

    async def body(self, limit: int) -> bytes:
        """Collect the request's body, of which at most `limit` bytes are taken."""
        too_large = BodyTooLarge(f"the body is longer than {limit} bytes")
        announced = self.header(b"content-length")
        if announced.isdigit() and int(announced) > limit:
            raise too_large
        body = bytearray()
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _ClientGone
            body += message.get("body", b"")
            if len(body) > limit:
                raise too_large
            more = message.get("more_body", False)
        return bytes(body)

    async def while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, and cancel it as soon as the client is gone.

        Raises:
            _ClientGone: it went before the work was done.
        """
        working = asyncio.ensure_future(work)
        listening = asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait((working, listening), return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = working.done()
            working.cancel()
            listening.cancel()
            await asyncio.gather(working, listening, return_exceptions=True)
        if not finished:
            raise _ClientGone
        working.result()

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status
        if self._echo_request_id:
            headers = [*headers, (b"x-request-id", self.request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def json(self, status: int, content: object, headers: Headers = ()) -> None:
        await self.whole(status, b"application/json", json.dumps(content).encode(), headers)

    async def whole(self, status: int, kind: bytes, body: bytes, headers: Headers = ()) -> None:
        length = str(len(body)).encode()
        await self.start(status, [(b"content-type", kind), (b"content-length", length), *headers])
        await self.write(body, more=False)

    async def fail(self, error: RequestError) -> None:
        """Answer with `error`; an answer that has begun is broken off instead.

        Raises:
            RequestError: `error` itself, upon which the server closes the connection.
        """
        self.log(error.status, str(error))
        if self.status:
            raise error
        headers = []
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
        if isinstance(error, MethodNotAllowed):
            allowed = openai.ROUTES[openai.route(self.path)]
            headers.append((b"allow", ", ".join(allowed).encode()))
        await self.json(error.status, openai.error_object(error), headers)

    def log(self, status: int, text: str) -> None:
        """Write the one line that a failed request gets; never anything of a body."""
        self.told = True
        level = logging.WARNING if status >= 500 else logging.INFO
        # The text may name what the client sent: it must not begin a line of its own.
        line = "".join(char if char.isprintable() else " " for char in text)
        logger.log(level, "%s %d: %s", self, status, line)
