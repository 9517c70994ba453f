"""The simulated engine's program: `python -m cluster.engines.simulated.server --help`."""

from __future__ import annotations

import argparse
import array
import asyncio
import base64
import dataclasses
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import uvloop
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import TypeAdapter, ValidationError

from cluster.engines.simulated.answers import Answer, ChatAnswer, Choice, CompletionAnswer, dumps
from cluster.engines.simulated.engine import StartSwitches, Switches, from_options, make_parser
from cluster.engines.simulated.metrics import EngineCollector
from cluster.engines.simulated.model import Settings
from cluster.engines.simulated.player import Player
from cluster.engines.simulated.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    GenerationRequest,
    ResponsesRequest,
    TokenizeRequest,
    token_lists,
)
from cluster.engines.simulated.responses import ResponsesAnswer
from cluster.engines.simulated.text import detokenize, embed
from cluster.errors import InvalidRequest, ModelNotFound, RequestError, did_you_mean

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_DIALECTS: dict[str, tuple[type[GenerationRequest], Callable[..., Answer]]] = {
    "/v1/chat/completions": (ChatRequest, ChatAnswer),
    "/v1/completions": (CompletionRequest, CompletionAnswer),
    "/v1/responses": (ResponsesRequest, ResponsesAnswer),
}
_SWITCHES = TypeAdapter(Switches)


class Server:
    """The routes. `player` makes the tokens."""

    def __init__(self, player: Player, model: str, root: str) -> None:
        self.player, self.model, self.root = player, model, root
        self.context = player.settings.context
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(player.scheduler, model))
        self.app = web.Application(middlewares=[self._guard], client_max_size=0)
        self.app.add_routes(
            [web.post(path, self.generate) for path in _DIALECTS]
            + [
                web.post("/v1/embeddings", self.embed),
                web.post("/tokenize", self.tokenize),
                web.post("/detokenize", self.detokenize),
                web.post("/simulate", self.simulate),
                web.get("/v1/models", self.models),
                web.get("/health", self.health),
                web.get("/ping", self.health),
                web.get("/version", self.version),
                web.get("/metrics", self.metrics),
            ]
        )

    async def listen(self, host: str, port: int) -> None:
        """Bind `host`:`port` and serve from now on."""
        self._address = host, port
        self._runner = web.AppRunner(
            self.app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        self._site: web.TCPSite | None = None
        await self._follow_refuse()

    async def close(self) -> None:
        await self._runner.cleanup()

    async def generate(self, http: web.Request) -> web.StreamResponse:
        kind, dialect = _DIALECTS[http.path]
        request = kind.model_validate_json(await http.read())
        self._check_model(request.model)
        prompts = request.prompts()
        for prompt in prompts:
            self._check_length(len(prompt), request.length() or 1)
        choices = [
            Choice(index, prompts[index // request.n]) for index in range(len(prompts) * request.n)
        ]
        answer = dialect(request, http.headers.get("X-Request-Id") or uuid.uuid4().hex, self.model)
        if request.stream:
            return await self._stream(http, request, choices, answer)
        await self.player.play(choices, request, _nothing)
        return _json(answer.whole(choices))

    async def embed(self, http: web.Request) -> web.Response:
        request = EmbeddingRequest.model_validate_json(await http.read())
        self._check_model(request.model)
        prompts, form = token_lists(request.input), request.encoding_format
        count = sum(map(len, prompts))
        data = [
            {"index": i, "object": "embedding", "embedding": _encode(embed(p), form)}
            for i, p in enumerate(prompts)
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return _json({"object": "list", "data": data, "model": self.model, "usage": usage})

    async def tokenize(self, http: web.Request) -> web.Response:
        request = TokenizeRequest.model_validate_json(await http.read())
        self._check_model(request.model)
        tokens = request.tokens()
        return _json({"count": len(tokens), "max_model_len": self.context, "tokens": tokens})

    async def detokenize(self, http: web.Request) -> web.Response:
        request = DetokenizeRequest.model_validate_json(await http.read())
        self._check_model(request.model)
        return _json({"prompt": detokenize(request.tokens)})

    async def models(self, http: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "created": int(time.time())}
        card |= {"owned_by": "simulated", "root": self.root, "parent": None}
        return _json({"object": "list", "data": [card | {"max_model_len": self.context}]})

    async def health(self, http: web.Request) -> web.Response:
        return web.Response(status=self.player.switches.health_status)

    async def version(self, http: web.Request) -> web.Response:
        return _json({"version": "simulated"})

    async def metrics(self, http: web.Request) -> web.Response:
        body = generate_latest(self.registry)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    async def simulate(self, http: web.Request) -> web.Response:
        """Change the failure switches that the body names; answer with all of them."""
        changes = TypeAdapter(dict[str, Any]).validate_json(await http.read() or b"{}")
        switches = dataclasses.asdict(self.player.switches)
        for name in changes.keys() - switches.keys():
            raise InvalidRequest(f"{name}{did_you_mean(name, switches)}", "there is no such switch")
        self.player.set(_SWITCHES.validate_python(switches | changes))
        await self._follow_refuse()
        return _json(dataclasses.asdict(self.player.switches))

    async def _stream(
        self,
        http: web.Request,
        request: GenerationRequest,
        choices: list[Choice],
        answer: Answer,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        opening = [answer.opening]

        async def on_token(choice: Choice) -> None:
            event = opening.pop()(choices) if opening else b""
            event += answer.delta(choice)
            cut = self.player.switches.cut_after_tokens
            if cut and len(choice.tokens) > cut:
                await response.write(event[: len(event) // 2])
                _hang_up(http)
            await response.write(event)

        await self.player.play(choices, request, on_token)
        await response.write(answer.closing(choices))
        return response

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let the switches break the request; turn what goes wrong into vLLM's error bodies."""
        switches = self.player.switches
        if switches.refuse == "reset" and request.path != "/simulate":
            _hang_up(request, reset=True)
        if switches.error_status and request.path.startswith("/v1/"):
            return _error(switches.error_status, "an error was asked for by error_status")
        try:
            return await handler(request)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, ("body", *first["loc"])))
            return _error(400, f"{where}: {first['msg']}", where)
        except RequestError as error:
            return _error(error.status, str(error), error.param)
        except web.HTTPException as error:
            return _json({"detail": error.reason}, error.status)

    async def _follow_refuse(self) -> None:
        refuses = self.player.switches.refuse == "connect"
        if refuses and self._site:
            await self._site.stop()
            self._site = None
        elif not refuses and not self._site:
            self._site = web.TCPSite(self._runner, *self._address, backlog=2048)
            await self._site.start()

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self.model):
            raise ModelNotFound(f"The model `{name}` does not exist", param="model")

    def _check_length(self, prompt: int, output: int) -> None:
        if not prompt:
            raise InvalidRequest("The prompt is empty", param="prompt")
        if prompt + output > self.context:
            raise InvalidRequest(
                f"This model's maximum context length is {self.context} tokens",
                f"the request has {prompt} in the prompt and asks for {output}",
                param="max_tokens",
            )


async def _nothing(choice: Choice) -> None:
    pass


def _json(body: object, status: int = 200) -> web.Response:
    raw = body if isinstance(body, bytes) else dumps(body)
    return web.Response(body=raw, status=status, content_type="application/json")


def _error(status: int, message: str, param: str | None = None) -> web.Response:
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status)
    kind = kind or HTTPStatus(status).phrase.replace(" ", "")
    error = {"message": message, "type": kind, "param": param, "code": status}
    return _json({"error": error}, status)


def _hang_up(http: web.Request, reset: bool = False) -> None:
    """Close the connection after what was written (or reset it), and leave the handler."""
    if transport := http.transport:
        if reset:
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, linger
            )
        transport.close()
    raise asyncio.CancelledError


def _encode(vector: list[float], encoding: str) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(array.array("f", vector).tobytes()).decode()
    return vector


def start(settings: Settings, failures: StartSwitches) -> None:
    """Take as long as a start takes, phase by phase, and fail where that was asked for."""
    for phase in ("loading model", "warming up"):
        print(phase, flush=True)
        time.sleep(settings.start_seconds / 2)
    if failures.orphan:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        print(f"orphan {subprocess.Popen(command, start_new_session=True).pid}", flush=True)
    if failures.fail_start:
        print(failures.fail_start, file=sys.stderr, flush=True)
        sys.exit(failures.fail_start_code)


async def serve(options: argparse.Namespace, settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    player = Player(settings, from_options(Switches, options))
    server = Server(player, options.served_model_name or options.model, options.model)
    await server.listen(options.host, options.port)
    print(f"server on http://{options.host}:{options.port}", flush=True)
    await stop.wait()
    await server.close()


def main() -> None:
    parser = make_parser()
    options = parser.parse_args()
    try:
        settings = from_options(Settings, options)
    except ValueError as error:
        parser.error(str(error))
    start(settings, from_options(StartSwitches, options))
    try:
        uvloop.run(serve(options, settings))
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
