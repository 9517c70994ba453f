"""The gateway as a Ray Serve deployment: HTTP through HAProxy, and handle calls.

`serve.get_app_handle(name)` is this deployment's handle. Both ways share one GatewayApp: the same
queue, limits and errors.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from cluster.coordinator import CoordinatorClient
from cluster.errors import InvalidRequest
from serve_apps.fleet import Fleet
from serve_apps.gateway import GatewayApp
from serve_apps.generation import Chunk, ChunkReader, Generation, error_of, generation_of
from serve_apps.limits import GatewayLimits
from serve_apps.metrics import Source
from serve_apps.ray_metrics import RaySink
from serve_apps.recorder import LOOK_PERIOD_S, GatewayMetrics
from serve_apps.serve_settings import advice, join_serve_log

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedModel:
    """A model of this application, and whether all of its replicas may go (min_replicas 0)."""

    name: str
    may_sleep: bool


class _Waker:
    """Makes Serve start a replica where there is none: by a call that waits for one.

    One call is enough for all who wait (Serve scales from zero by the calls at its handles).
    """

    def __init__(self, deployment: DeploymentHandle[Any]) -> None:
        self._deployment = deployment
        self._call: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        if self._call is None or self._call.done():
            self._call = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        try:
            await self._deployment.wake.remote()
        except Exception as error:
            logger.warning(f"{self._deployment.deployment_name} could not be woken: {error}")


@serve.deployment(
    # The gateway has bounds of its own (limits.py) and says what they mean.
    max_ongoing_requests=100_000,
    health_check_period_s=1,
    health_check_timeout_s=30,
    ray_actor_options={"num_cpus": 0},
    # The gateway's own lines name the path, the replica and what went wrong.
    logging_config={"enable_access_log": False},
)
@serve.ingress()
class Gateway:
    """Knows all replicas from the coordinator's directory; each request takes one hop more."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: GatewayLimits,
        *deployments: DeploymentHandle[Any],
    ) -> None:
        join_serve_log()
        if told := advice(os.environ):
            logger.warning(told)
        context = serve.get_replica_context()
        self._app_name = context.app_name
        self._models = tuple(model.name for model in models)
        wakers = {
            model.name: _Waker(deployment)
            for model, deployment in zip(models, deployments, strict=True)
            if model.may_sleep
        }
        self._metrics = GatewayMetrics(context.replica_id.unique_id, RaySink(Source.GATEWAY))
        self._fleet = Fleet(self._models, limits, wakers, observer=self._metrics)
        self._app = GatewayApp(self._fleet, limits, echo_request_id=False, observer=self._metrics)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow()), loop.create_task(self._measure())]
        # Ray and Serve are 100 000 objects that stay. Walking them all, as Ray's own calls of
        # gc.collect do, would hold every stream for 0.1 s.
        gc.freeze()

    def __serve_build_asgi_app__(self) -> GatewayApp:
        return self._app

    async def generate(
        self, prompt: str, *, model: str = "", stream: bool = False, **parameters: Any
    ) -> Generation | AsyncIterator[Chunk]:
        """Complete `prompt`; `parameters` are those of /v1/completions.

        Whole: `await handle.generate.remote("…", max_tokens=8)` gives a Generation.
        Streaming: `handle.options(stream=True).generate.remote("…", stream=True)` yields Chunks.

        Raises:
            RequestError: as over HTTP.
        """
        return await self._call("/v1/completions", model, stream, prompt=prompt, **parameters)

    async def chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        model: str = "",
        stream: bool = False,
        **parameters: Any,
    ) -> Generation | AsyncIterator[Chunk]:
        """Answer `messages`; `parameters` are those of /v1/chat/completions. Else as `generate`."""
        return await self._call(
            "/v1/chat/completions", model, stream, messages=list(messages), **parameters
        )

    async def _call(
        self, path: str, model: str, stream: bool, **body: Any
    ) -> Generation | AsyncIterator[Chunk]:
        if not model and len(self._models) > 1:
            raise InvalidRequest(
                "no model was named", "this application serves several", "pass model=", "model"
            )
        model = model or self._models[0]
        body |= {"model": model, "stream": stream}
        if stream:
            body.setdefault("stream_options", {"include_usage": True})
            return self._stream(model, path, json.dumps(body).encode())
        async with self._app.relay.open(
            model, path, json.dumps(body).encode(), uuid.uuid4().hex
        ) as answer:
            content = json.loads(b"".join([piece async for piece in answer.body]))
        if answer.status >= 400:
            raise error_of(answer.status, content)
        return generation_of(content)

    async def _stream(self, model: str, path: str, body: bytes) -> AsyncIterator[Chunk]:
        async with self._app.relay.open(model, path, body, uuid.uuid4().hex) as answer:
            if answer.status >= 400:
                content = json.loads(b"".join([piece async for piece in answer.body]))
                raise error_of(answer.status, content)
            async for chunk in ChunkReader().read(answer.body):
                yield chunk

    async def _follow(self) -> None:
        """Keep the fleet's picture the directory's; the last one holds while that is away."""
        async for picture in CoordinatorClient().watch():
            ours = tuple(r for r in picture.replicas if r.app == self._app_name)
            self._fleet.update(replace(picture, replicas=ours))
            self._metrics.deaths(ours)

    async def _measure(self) -> None:
        while True:
            self._metrics.look(self._fleet)
            await asyncio.sleep(LOOK_PERIOD_S)
