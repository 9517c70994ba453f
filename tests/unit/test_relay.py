"""Bytes between client and engine, and what happens when either goes away."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from yarl import URL

from cluster.directory import Picture
from cluster.errors import NoReplicaReady, ReplicaLost
from tests.unit.gateway_rig import (
    ANSWERS,
    BODY,
    EVENTS,
    STREAM_HEAD,
    Engine,
    Script,
    breaks,
    chunk,
    error_of,
    gateway,
    hangs,
    in_turn,
    record,
    refused_url,
    says,
    stream,
    until,
    whole,
)

PASSED = {
    "stream": (stream(EVENTS[:17], EVENTS[17:]), 200, EVENTS),
    "stream in one piece": ([b"".join(stream(EVENTS))], 200, EVENTS),
    "stream without an end": (stream(b"data: 1\n"), 200, b"data: 1\n"),
    "whole": ([whole(b'{"x":  1}\n')], 200, b'{"x":  1}\n'),
    "whole in pieces": (
        [whole(b"x" * 300_000)[:99], whole(b"x" * 300_000)[99:]],
        200,
        b"x" * 300_000,
    ),
    "chunked": (
        [
            b"HTTP/1.1 200 OK\r\ncontent-type: audio/wav\r\ntransfer-encoding: chunked\r\n\r\n"
            + chunk(b"\x00\n\n\xff"),
            chunk(b"\x01") + b"0\r\n\r\n",
        ],
        200,
        b"\x00\n\n\xff\x01",
    ),
    "the engine's own refusal": ([whole(b'{"error": "bad"}', "422 No")], 422, b'{"error": "bad"}'),
    "empty": ([whole(b"")], 200, b""),
    "redirect": ([whole(b"there", "307 There")], 307, b"there"),
}


@pytest.mark.parametrize(("sent", "status", "body"), PASSED.values(), ids=PASSED)
async def test_answers_are_the_bytes_that_the_engine_sent(
    sent: list[bytes], status: int, body: bytes
) -> None:
    async with gateway(Engine(says(*sent))) as front:
        got, _, content = await front.post(allow_redirects=False)
        assert (got, content) == (status, body)


@pytest.mark.parametrize("prompt", [b"\xc3\xa9", b"x" * 3_000_000], ids=["short", "long"])
async def test_requests_reach_the_engine_as_they_are(prompt: bytes) -> None:
    engine = Engine(ANSWERS)
    body = b'{ "model":"m", "prompt": "%s" }' % prompt
    path = "/v1/completions?a=%20b&c"
    async with gateway(engine) as front:
        await front.post(body, URL(f"http://127.0.0.1:{front.port}{path}", encoded=True))
    assert engine.requests[0].line == f"POST {path} HTTP/1.1"
    assert engine.requests[0].body == body


async def test_events_are_forwarded_whole_wherever_the_engine_cuts_them() -> None:
    cuts = list(range(1, len(EVENTS)))
    scripts = [says(*stream(EVENTS[:cut], EVENTS[cut:])) for cut in cuts]
    async with gateway(Engine(in_turn(*scripts))) as front:
        for _ in cuts:
            async with front.app.relay.open("m", "/v1/completions", BODY, "id") as answer:
                pieces = [piece async for piece in answer.body]
            assert all(piece.endswith(b"\n\n") for piece in pieces)
            assert b"".join(pieces) == EVENTS


async def test_events_are_forwarded_as_they_come() -> None:
    async with (
        gateway(Engine(hangs(STREAM_HEAD, chunk(b"data: 1\n\ndata: 2")))) as front,
        front.client.post("/v1/completions", data=BODY) as response,
    ):
        assert await response.content.readany() == b"data: 1\n\n"


GONE = {
    "before the headers": hangs(),
    "before the first event": hangs(STREAM_HEAD),
    "in the middle": hangs(STREAM_HEAD, chunk(b"data: 1\n\n")),
    "in a whole answer": hangs(whole(b"0123456789")[:-3]),
}


@pytest.mark.parametrize("script", GONE.values(), ids=GONE)
async def test_a_client_that_leaves_closes_the_engine_connection(script: Script) -> None:
    engine = Engine(script)
    async with gateway(engine) as front:
        request = asyncio.create_task(front.post())
        await until(lambda: len(engine.requests) == 1)
        await asyncio.sleep(0.02)
        assert front.in_flight == 1
        request.cancel()
        await asyncio.wait_for(engine.gone.wait(), 2)


async def test_a_client_that_leaves_the_queue_is_never_sent_on() -> None:
    engine = Engine(in_turn(hangs(), ANSWERS))
    async with gateway(engine) as front:
        front.fleet.update(
            Picture("e", 2, True, (record("r0", engine.url, max_ongoing_requests=1),))
        )
        first = asyncio.create_task(front.post())
        await until(lambda: len(engine.requests) == 1)
        queued = asyncio.create_task(front.post())
        await until(lambda: front.fleet.queued("m") == 1)
        queued.cancel()
        await until(lambda: front.fleet.queued("m") == 0)
        first.cancel()
        await until(lambda: front.in_flight == 0)
        assert len(engine.requests) == 1


BROKEN = {
    "after the request": breaks(),
    "in the headers": breaks(b"HTTP/1.1 200 OK\r\nconte"),
    "before the first event": breaks(STREAM_HEAD),
    "in a whole answer": breaks(whole(b"0123456789")[:-3]),
    "not HTTP": breaks(b"SSH-2.0-x\r\n\r\n"),
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
async def test_a_replica_that_breaks_before_the_first_byte_is_replaced_and_avoided(
    script: Script,
) -> None:
    broken, sound = Engine(script), Engine(ANSWERS)
    async with gateway(broken, sound) as front:
        for _ in range(4):
            assert (await front.post())[::2] == (200, b'{"ok": true}')
    assert (len(broken.requests), len(sound.requests)) == (1, 4)


async def test_a_replica_that_refuses_connections_is_replaced() -> None:
    refusing = [record(f"x{i}", refused_url()) for i in range(4)]
    async with gateway(Engine(ANSWERS), records=refusing) as front:
        for _ in range(6):
            assert (await front.post())[0] == 200


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
async def test_without_another_replica_a_broken_one_is_502(script: Script) -> None:
    async with gateway(Engine(script)) as front:
        status, headers, content = await front.post()
        assert status == 502
        assert error_of(content)["code"] == "replica_lost"
        assert len(headers["x-request-id"]) == 32


async def test_one_request_does_not_take_the_whole_fleet_with_it() -> None:
    engines = [Engine(breaks()) for _ in range(5)]
    async with gateway(*engines, max_attempts=3) as front:
        assert (await front.post())[0] == 502
    assert sum(len(engine.requests) for engine in engines) == 3


async def test_a_kept_connection_that_was_closed_meanwhile_is_no_fault_of_the_replica() -> None:
    engine = Engine(in_turn(ANSWERS, breaks(), ANSWERS, ANSWERS))
    async with gateway(engine, Engine(ANSWERS)) as front:
        front.fleet.update(Picture("e", 2, True, (record("r0", engine.url),)))
        assert [(await front.post())[0] for _ in range(3)] == [200, 200, 200]
        assert front.fleet.replicas("m")[0].cool_until == 0
    assert len(engine.requests) == 4


CUT = {
    "in an event": breaks(STREAM_HEAD, chunk(b"data: 1\n\ndata: {")),
    "in a chunk": breaks(STREAM_HEAD, chunk(b"data: 1\n\n"), b"1f\r\ndata: {"),
    "between events": breaks(STREAM_HEAD, chunk(b"data: 1\n\n")),
    "without chunks": breaks(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n", b"data: {"
    ),
}


@pytest.mark.parametrize("script", CUT.values(), ids=CUT)
async def test_a_stream_that_breaks_ends_with_an_error_event(script: Script) -> None:
    async with gateway(Engine(script)) as front:
        status, _, content = await front.post()
    first, last, rest = content.split(b"\n\n")
    assert (status, first, rest) == (200, b"data: 1", b"")
    assert error_of(last.removeprefix(b"data: "))["code"] == "replica_lost"


async def test_a_chunked_answer_that_breaks_is_broken_off() -> None:
    script = breaks(STREAM_HEAD.replace(b"text/event-stream", b"audio/wav"), chunk(b"abc"))
    async with gateway(Engine(script)) as front:
        with pytest.raises(aiohttp.ClientPayloadError):
            await front.post()


async def test_callers_in_this_process_share_queue_errors_and_counts() -> None:
    engine = Engine(in_turn(says(*stream(EVENTS)), breaks(STREAM_HEAD, chunk(b"data: 1\n\n"))))
    async with gateway(engine, models=("m", "n")) as front:
        async with front.app.relay.open("m", "/v1/completions", BODY, "id-1") as answer:
            assert (answer.status, answer.is_stream, front.in_flight) == (200, True, 1)
            assert b"".join([piece async for piece in answer.body]) == EVENTS
        async with front.app.relay.open("m", "/v1/completions", BODY, "id-2") as answer:
            assert await anext(answer.body) == b"data: 1\n\n"
            with pytest.raises(ReplicaLost):
                await anext(answer.body)
        with pytest.raises(NoReplicaReady):
            async with front.app.relay.open("n", "/v1/completions", BODY, "id-3"):
                pass
    assert engine.requests[0].headers["x-request-id"] == "id-1"
    assert engine.requests[0].headers["content-type"] == "application/json"


async def test_leaving_an_answer_early_closes_the_engine_connection() -> None:
    engine = Engine(hangs(STREAM_HEAD, chunk(b"data: 1\n\n")))
    async with gateway(engine) as front:
        async with front.app.relay.open("m", "/v1/completions", BODY, "id") as answer:
            assert await anext(answer.body) == b"data: 1\n\n"
        await asyncio.wait_for(engine.gone.wait(), 2)
