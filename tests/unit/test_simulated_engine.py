"""The simulated engine's table, its start, its clock and its failure switches."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from cluster.engines.base import EngineSpec
from cluster.errors import ConfigError
from tests.sites import one_node
from tests.unit.simulated import (
    ENGINE,
    FAST,
    ROOT,
    Process,
    client_of,
    completion,
    events,
    launched,
    spec,
    stats,
    until,
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Process]:
    with launched(*FAST) as process:
        yield process


@pytest.fixture
async def client(shared: Process) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(shared) as client:
        yield client


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (spec(tensor_parallel_size=0), ["tensor_parallel_size=0"]),
        (spec(max_model_len=0), ["max_model_len=0"]),
        (spec("--tfft", "1"), ['"--tfft"', 'did you mean "--ttft"?']),
        (spec("--help"), ['"--help"']),
        (spec("--ttft", "soon"), ["--ttft", "soon"]),
        (spec("--refuse=maybe"), ["--refuse", "maybe"]),
        (spec("--capacity=0"), ["capacity=0"]),
        (spec("--port", "80"), ["--port", "Rayscend sets this flag itself"]),
        (spec("--kv-blocks=1", max_model_len=100), ["max_model_len=100", "kv_blocks=1"]),
    ],
)
def test_what_could_never_start_is_refused_by_name(wrong: EngineSpec, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        ENGINE.check(wrong)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_the_plan_carries_lease_environment_and_arguments() -> None:
    asked = spec("--itl=1", engine_python="/py", max_model_len=64, env={"A": "b"})
    ENGINE.check(asked)
    plan = ENGINE.plan(asked, one_node(4321, "10.0.0.1"))
    assert plan.head.argv[0] == "/py"
    assert plan.head.argv[-3:] == ("--max-model-len", "64", "--itl=1")
    assert (plan.url, plan.head.env) == ("http://10.0.0.1:4321", {"A": "b"})


def test_phases_are_printed_in_the_order_of_the_table(shared: Process) -> None:
    begun = [
        p.name for line in shared.lines for p in ENGINE.phases if p.begins and p.begins.search(line)
    ]
    assert begun == [phase.name for phase in ENGINE.phases if phase.begins]


@pytest.mark.parametrize(
    ("flags", "code", "words", "transient"),
    [
        (["--tfft=1"], 2, "--tfft", False),
        (["--capacity=0"], 2, "capacity=0", False),
        (["--fail-start=OSError: Address already in use", "--fail-start-code=7"], 7, "port", True),
    ],
)
def test_a_failed_start_prints_a_line_that_the_table_knows(
    flags: list[str], code: int, words: str, transient: bool
) -> None:
    with launched(*flags) as process:
        assert process.popen.wait(20) == code
    known = [
        (f, line, m)
        for line in process.lines
        for f in ENGINE.failures
        if (m := f.pattern.search(line))
    ]
    failure, line, match = known[-1]
    assert words in str(failure.error(line, match))
    assert failure.transient is transient


def test_a_port_in_use_ends_the_start(shared: Process) -> None:
    with launched(port=int(shared.url.rsplit(":")[-1])) as process:
        assert process.popen.wait(20) == 1
    assert ENGINE.failures[0].pattern.search(process.lines[-1])


def test_a_slow_start_listens_only_at_its_end() -> None:
    began = time.monotonic()
    with launched("--start-seconds=1"):
        assert time.monotonic() - began >= 1


def test_an_orphan_outlives_the_engine_in_its_own_session() -> None:
    with launched("--orphan") as process:
        pid = next(int(line.split()[1]) for line in process.lines if line.startswith("orphan"))
    try:
        assert os.getsid(pid) == pid
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_sigterm_ends_it_cleanly_and_does_not_wait_for_streams() -> None:
    with launched("--itl=0.1") as process:
        async with httpx.AsyncClient(base_url=process.url) as client:
            body = completion(stream=True, max_tokens=1000)
            async with client.stream("POST", "/v1/completions", json=body) as stream:
                await anext(stream.aiter_raw())
                process.popen.terminate()
                assert await asyncio.to_thread(process.popen.wait, 10) == 0


async def test_tokens_are_never_early_and_capacity_makes_others_wait() -> None:
    with launched("--ttft=0.2", "--itl=0.05", "--capacity=1") as process:
        async with httpx.AsyncClient(base_url=process.url, timeout=20) as client:
            began = time.monotonic()
            calls = [client.post("/v1/completions", json=completion()) for _ in range(2)]
            both = asyncio.gather(*calls)
            await until(client, running=1, waiting=1)
            await both
            assert time.monotonic() - began >= 2 * (0.2 + 4 * 0.05)


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 3}, {"n": 3, "stream": True}])
async def test_a_disconnect_aborts_the_request_at_once(
    client: httpx.AsyncClient, more: dict[str, Any]
) -> None:
    await client.post("/simulate", json={"stall": True})
    call = asyncio.create_task(client.post("/v1/completions", json=completion(**more)))
    await until(client, running=more.get("n", 1))
    text = (await client.get("/metrics")).text
    call.cancel()
    await until(client, running=0)
    assert aborted((await client.get("/metrics")).text) == aborted(text) + more.get("n", 1)


def aborted(metrics: str) -> int:
    line = next(x for x in metrics.splitlines() if "success_total" in x and '"abort"' in x)
    return int(float(line.split()[-1]))


async def test_a_stall_stops_every_token_and_keeps_probes_alive(client: httpx.AsyncClient) -> None:
    await client.post("/simulate", json={"stall": True})
    call = asyncio.create_task(client.post("/v1/completions", json=completion()))
    await until(client, running=1)
    before = await stats(client)
    await asyncio.sleep(0.2)
    assert await stats(client) == before
    assert (await client.get("/health")).status_code == 200
    assert not call.done()
    await client.post("/simulate", json={"stall": False})
    assert (await call).json()["usage"]["completion_tokens"] == 5


async def test_reset_breaks_connections_before_any_byte(client: httpx.AsyncClient) -> None:
    await client.post("/simulate", json={"refuse": "reset"})
    for path in ("/health", "/v1/models"):
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await client.get(path)


async def test_a_closed_port_refuses_new_connections_until_it_is_opened_again(
    client: httpx.AsyncClient,
) -> None:
    await client.post("/simulate", json={"refuse": "connect"})
    async with httpx.AsyncClient(base_url=client.base_url) as other:
        with pytest.raises(httpx.ConnectError):
            await other.get("/health")
        await client.post("/simulate", json={"refuse": ""})
        assert (await other.get("/health")).status_code == 200


async def test_a_cut_ends_the_stream_in_the_middle_of_an_event(client: httpx.AsyncClient) -> None:
    await client.post("/simulate", json={"cut_after_tokens": 2})
    got = b""
    with pytest.raises(httpx.RemoteProtocolError):
        async with client.stream("POST", "/v1/completions", json=completion(stream=True)) as stream:
            async for part in stream.aiter_raw():
                got += part
    assert got.count(b"\n\n") == 2
    assert not got.endswith(b"\n")
    assert b"[DONE]" not in got
    await until(client, running=0)


@pytest.mark.parametrize(("status", "path"), [(503, "/v1/models"), (429, "/v1/completions")])
async def test_any_error_can_be_asked_for(
    client: httpx.AsyncClient, status: int, path: str
) -> None:
    await client.post("/simulate", json={"error_status": status, "health_status": 500})
    response = await client.post(path, json=completion())
    assert (response.status_code, response.json()["error"]["code"]) == (status, status)
    assert (await client.get("/health")).status_code == 500


@pytest.mark.parametrize("code", [7, -signal.SIGKILL])
async def test_it_dies_after_exactly_so_many_tokens(code: int) -> None:
    with launched(*FAST, "--die-after-tokens=3", f"--die-with={code}") as process:
        got = b""
        async with httpx.AsyncClient(base_url=process.url, timeout=20) as client:
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                body = completion(stream=True)
                async with client.stream("POST", "/v1/completions", json=body) as stream:
                    async for part in stream.aiter_raw():
                        got += part
        assert process.popen.wait(10) == code
        assert len(events(got.decode())) == 3


def test_importing_the_table_loads_no_server() -> None:
    code = "import sys, cluster.engines.simulated; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert not {"aiohttp", "ray", "vllm"} & set(run.stdout.split()), run.stderr
