"""What the gateway answers itself, and what it tells engines."""

from __future__ import annotations

import asyncio
import logging

import pytest
from yarl import URL

from cluster.directory import Picture
from tests.unit.gateway_rig import (
    ANSWERS,
    BODY,
    STREAM_HEAD,
    Engine,
    breaks,
    chunk,
    error_of,
    gateway,
    hangs,
    in_turn,
    record,
    says,
    until,
    whole,
)


async def test_headers_go_from_end_to_end_only() -> None:
    reply = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Engine: yes\r\nServer: e\r\nX-Hop: 1\r\n"
        b"Connection: x-hop\r\nX-Request-Id: other\r\nContent-Length: 2\r\n\r\nok"
    )
    engine = Engine(says(reply))
    sent = {
        "Authorization": "Bearer secret",
        "Cookie": "a=b",
        "Accept-Encoding": "gzip",
        "Te": "trailers",
        "X-Client": "yes",
        "X-Mine": "1",
        "Connection": "keep-alive, x-mine",
        "Content-Type": "application/json",
        "X-Request-Id": "abc-1",
    }
    async with gateway(engine) as front:
        _, headers, _ = await front.post(headers=sent)
    received = engine.requests[0].headers
    assert not {"authorization", "cookie", "te", "x-mine"} & set(received)
    assert received["x-client"] == "yes"
    assert received["accept-encoding"] == "identity"
    assert received["content-type"] == "application/json"
    assert received["x-request-id"] == headers["x-request-id"] == "abc-1"
    assert headers["x-engine"] == "yes"
    assert headers["content-length"] == "2"
    assert "x-hop" not in headers
    assert headers["server"] != "e"


@pytest.mark.parametrize("given", [None, "", "with spaces", "x" * 129])
async def test_a_request_id_is_made_where_none_fit_is_given(given: str | None) -> None:
    engine = Engine(ANSWERS)
    async with gateway(engine) as front:
        _, headers, _ = await front.post(
            headers={"X-Request-Id": given} if given is not None else {}
        )
    assert len(headers["x-request-id"]) == 32
    assert engine.requests[0].headers["x-request-id"] == headers["x-request-id"]


REFUSED = {
    "cut": (b'{"model": "m', 400, "invalid_request", None),
    "list": (b"[]", 400, "invalid_request", None),
    "not UTF-8": (b'{"model": "m", "x": "\xff"}', 400, "invalid_request", None),
    "2000 deep": (b'{"x":' + b"[" * 2000 + b"]" * 2000 + b"}", 400, "invalid_request", None),
    "no model": (b"{}", 400, "invalid_request", "model"),
    "endless model": (b'{"model": "%s"}' % (b"x" * 9000), 404, "model_not_found", "model"),
    "unknown model": (b'{"model": "x"}', 404, "model_not_found", "model"),
    "too long": (b" " * 20_000 + BODY, 413, "body_too_large", None),
    "not ready": (b'{"model": "n"}', 503, "no_replica_ready", None),
}


@pytest.mark.parametrize(("body", "status", "code", "param"), REFUSED.values(), ids=REFUSED)
async def test_refusals_have_the_shape_of_openai(
    body: bytes, status: int, code: str, param: str | None
) -> None:
    engine = Engine(ANSWERS)
    async with gateway(engine, models=("m", "n"), max_body_bytes=10_000) as front:
        got, headers, content = await front.post(body, headers={"X-Request-Id": "abc"})
        assert got == status
        error = error_of(content)
        assert len(content) < 1000
        assert (error["code"], error["param"]) == (code, param)
        assert headers["x-request-id"] == "abc"
        assert headers.get("retry-after") == ("1" if status == 503 else None)
        assert engine.requests == []


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("POST", "/v1/models", 405, "GET"),
        ("DELETE", "/v1/responses/r1", 405, "GET, POST"),
        ("POST", "/sleep", 404, None),
        ("POST", "/metrics", 405, "GET"),
        ("GET", "/v1/responses/%2E%2E/%2E%2E/metrics", 404, None),
        ("GET", "/v1/models/x", 404, None),
    ],
)
async def test_paths_and_methods_that_are_not_served(
    method: str, path: str, status: int, allow: str | None
) -> None:
    engine = Engine(ANSWERS)
    async with gateway(engine) as front:
        url = URL(f"http://127.0.0.1:{front.port}{path}", encoded=True)
        async with front.client.request(method, url) as response:
            assert response.status == status
            assert response.headers.get("allow") == allow
            error_of(await response.read())
    assert engine.requests == []


async def test_a_body_that_is_announced_too_long_is_refused_before_it_comes() -> None:
    async with gateway(Engine(ANSWERS), max_body_bytes=100) as front:
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 101\r\n\r\n")
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 2)
        writer.close()


async def test_a_chunked_body_is_refused_once_it_is_too_long() -> None:
    async with gateway(Engine(ANSWERS), max_body_bytes=100) as front:
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        writer.write(chunk(b" " * 60) * 2)
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 2)
        writer.close()


async def test_a_full_queue_is_429_and_a_long_wait_503() -> None:
    engine = Engine(hangs())
    async with gateway(
        engine, max_queued_requests=1, queue_timeout_s=0.3, retry_after_s=2.5
    ) as front:
        front.fleet.update(
            Picture("e", 2, True, (record("r0", engine.url, max_ongoing_requests=1),))
        )
        first = asyncio.create_task(front.post())
        await until(lambda: len(engine.requests) == 1)
        second = asyncio.create_task(front.post())
        await until(lambda: front.fleet.queued("m") == 1)
        for answer, expected in ((await front.post(), 429), (await second, 503)):
            status, headers, content = answer
            assert (status, headers["retry-after"]) == (expected, "3")
            error_of(content)
        first.cancel()


async def test_without_a_model_in_the_body_the_only_one_is_asked() -> None:
    engine = Engine(ANSWERS)
    async with gateway(engine) as front:
        assert (await front.post(b'{"prompt": "x"}'))[0] == 200
        async with front.client.get("/version") as response:
            assert response.status == 200
        assert (await front.post(b"", "/v1/responses/r1/cancel"))[0] == 200
    assert [request.line.split()[0] for request in engine.requests] == ["POST", "GET", "POST"]
    assert engine.requests[0].body == b'{"prompt": "x"}'


async def test_a_path_that_names_no_model_needs_an_app_with_one_model() -> None:
    async with (
        gateway(Engine(ANSWERS), models=("m", "n")) as front,
        front.client.get("/version") as response,
    ):
        assert response.status == 404


async def test_all_models_are_listed_ready_or_not() -> None:
    async with gateway(models=("m", "org/n")) as front:
        async with front.client.get("/v1/models") as response:
            listed = await response.json()
        assert [card["id"] for card in listed["data"]] == ["m", "org/n"]
        assert listed["data"][0]["owned_by"] == "rayscend"
        for name in ("org/n", "org%2Fn"):
            url = URL(f"http://127.0.0.1:{front.port}/v1/models/{name}", encoded=True)
            async with front.client.get(url) as response:
                assert await response.json() == listed["data"][1]


@pytest.mark.parametrize("engines", [0, 1])
async def test_health_is_that_some_model_has_a_ready_replica(engines: int) -> None:
    made = [Engine(ANSWERS) for _ in range(engines)]
    async with gateway(*made, models=("m", "n")) as front, front.client.get("/health") as response:
        assert response.status == (200 if engines else 503)
        assert (await response.json())["models"] == {
            "m": {"ready": engines, "told": "m is ready" if engines else "m has no replica"},
            "n": {"ready": 0, "told": "n has no replica"},
        }


async def test_failed_requests_get_one_line_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "serve_apps.gateway")
    engine = Engine(
        in_turn(breaks(STREAM_HEAD, chunk(b"data: 1\n\n")), says(whole(b"no", "400 No")))
    )
    sent = {"Authorization": "Bearer secret"}
    async with gateway(engine) as front:
        for name in ("one", "two"):
            await front.post(b'{"prompt": "private"}', headers=sent | {"X-Request-Id": name})
        await front.post(b'{"model": "x", "prompt": "private"', headers=sent)
        await front.post(b'{"model": "x\\nforged"}')
    lines = [record.getMessage() for record in caplog.records]
    assert [sum(line.startswith(f"{name}: POST") for line in lines) for name in ("one", "two")] == [
        1,
        1,
    ]
    assert len(lines) == 4
    assert not any("\n" in line for line in lines)
    assert not any(secret in "".join(lines) for secret in ("secret", "private"))
