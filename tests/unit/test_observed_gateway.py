"""What a gateway tells its observer, and what it answers on /metrics."""

from __future__ import annotations

import json

import aiohttp
import pytest

from serve_apps.observer import Observer, RequestTrace
from tests.unit.gateway_rig import (
    ANSWERS,
    BODY,
    EVENTS,
    STREAM_HEAD,
    Engine,
    Script,
    breaks,
    chunk,
    gateway,
    hangs,
    record,
    refused_url,
    says,
    stream,
    until,
    whole,
)


async def test_metrics_are_those_of_every_engine_that_answers() -> None:
    text = b'# HELP x X.\n# TYPE x counter\nx{a="b"} 1\n'
    speaks = Engine(says(whole(text, kind="text/plain")))
    refuses = Engine(says(whole(b"{}", "500 Oops")))
    away = record("r2", refused_url())
    async with (
        gateway(speaks, refuses, records=(away,)) as served,
        served.client.get("/metrics") as response,
    ):
        page = await response.text()
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'x{model="m",replica="r0",a="b"} 1' in page
    for replica, up in (("r0", 1), ("r1", 0), ("r2", 0)):
        assert f'rayscend_engine_up{{model="m",replica="{replica}"}} {up}' in page
    assert page.count("# TYPE rayscend_engine_up") == 1
    assert speaks.requests[0].headers["accept-encoding"] == "identity"


class Told(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.queued_s: list[float] = []
        self.picks: list[str] = []
        self.statuses: list[int] = []

    def finished(self, trace: RequestTrace) -> None:
        self.outcomes.append(trace.outcome)
        self.queued_s.append(trace.queued_s)

    def picked(self, model: str, reason: str) -> None:
        self.picks.append(reason)

    def answered(self, status: int) -> None:
        self.statuses.append(status)


@pytest.mark.parametrize(
    ("scripts", "body", "outcomes", "picks", "status"),
    [
        ([says(*stream(EVENTS))], BODY, ["ok"], ["least_loaded"], 200),
        ([ANSWERS], BODY, ["ok"], ["least_loaded"], 200),
        ([says(whole(b"{}", "400 No"))], BODY, ["engine_error"], ["least_loaded"], 400),
        ([breaks(), ANSWERS], BODY, ["ok"], ["least_loaded", "retry"], 200),
        ([breaks()], BODY, ["replica_lost"], ["least_loaded"], 502),
        ([breaks(STREAM_HEAD, chunk(EVENTS))], BODY, ["replica_lost"], ["least_loaded"], 200),
        ([ANSWERS], b'{"model": "unknown"}', [], [], 404),
        ([ANSWERS], b"no json", [], [], 400),
    ],
)
async def test_the_observer_is_told_how_each_request_ends(
    scripts: list[Script], body: bytes, outcomes: list[str], picks: list[str], status: int
) -> None:
    told = Told()
    async with gateway(*map(Engine, scripts), observer=told) as served:
        await served.post(body)
        await until(lambda: bool(told.statuses))
    assert (told.outcomes, told.picks, told.statuses) == (outcomes, picks, [status])


async def test_the_observer_is_told_of_a_client_that_goes_away() -> None:
    told = Told()
    engine = Engine(hangs())
    async with gateway(engine, observer=told) as served:
        with pytest.raises(TimeoutError):
            await served.post(timeout=aiohttp.ClientTimeout(total=0.2))
        await until(lambda: bool(told.statuses))
    assert (told.outcomes, told.statuses) == (["client_gone"], [499])


async def test_the_wait_in_the_queue_is_told_of_requests_that_gave_up_too() -> None:
    told = Told()
    busy = record("r0", refused_url(), max_ongoing_requests=1)
    async with (
        gateway(records=(busy,), observer=told, queue_timeout_s=0.1) as served,
        served.fleet.reserve("m"),
    ):
        status, _, _ = await served.post()
    assert (status, told.outcomes) == (503, ["no_replica_ready"])
    assert told.queued_s[0] >= 0.1


async def test_the_observer_is_told_when_the_prompt_decided() -> None:
    told = Told()
    prompt = "Once upon a time " * 200
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    async with gateway(Engine(ANSWERS), Engine(ANSWERS), observer=told) as served:
        for _ in range(2):
            await served.post(body)
    assert told.picks == ["least_loaded", "prefix"]
