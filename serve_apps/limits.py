"""Every limit of the gateway, with its unit and default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from pydantic import ConfigDict

Count = Annotated[int, Ge(1)]
Seconds = Annotated[float, Gt(0)]


@dataclass(frozen=True)
class GatewayLimits:
    """What one gateway process allows.

    Attributes:
        max_body_bytes: a longer request body is refused with 413.
        max_json_depth: arrays and objects in one another; a deeper body is refused with 400.
        max_queued_requests: how many may wait for one model; the next one is refused with 429.
        queue_timeout_s: how long one may wait for a free replica before it is refused with 503.
        wake_timeout_s: how long one may wait for the first replica of a model that has none at the
            moment (min_replicas 0), its engine's start included, before it is refused with 503.
        connect_timeout_s: how long an engine may take to accept a connection.
        max_attempts: on how many broken connections one request may be lost before it is given
            up with 502. Not more than a few: the request itself may be what kills the engine.
        retry_after_s: what 429 and 503 tell clients in `Retry-After`.
        broken_cooldown_s: how long a replica that broke a connection is offered only if no
            other is ready.
    """

    max_body_bytes: Count = 32 * 1024 * 1024
    max_json_depth: Count = 128
    max_queued_requests: Annotated[int, Ge(0)] = 1024
    queue_timeout_s: Seconds = 60.0
    wake_timeout_s: Seconds = 600.0
    connect_timeout_s: Seconds = 2.0
    max_attempts: Count = 3
    retry_after_s: Seconds = 1.0
    broken_cooldown_s: Seconds = 2.0

    # Read by pydantic, as part of DeployConfig: a misspelt limit must not be passed over.
    __pydantic_config__ = ConfigDict(extra="forbid")
