"""Replicas follow the engines' load, up and down and from nothing, and no request is lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from ray import serve

from cluster.directory import ReplicaState
from tests.cluster.harness import Cluster, eventually


@pytest.fixture(autouse=True)
def fresh(cluster: Cluster) -> Iterator[None]:
    yield
    serve.delete("default")
    eventually(lambda: not cluster.replicas(ReplicaState.READY, ReplicaState.DRAINING), 60)


def stream(cluster: Cluster, tokens: int) -> bytes:
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    url = cluster.url + "/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        return b"".join(answer.iter_bytes())


def wanted_replicas() -> int:
    deployments = serve.status().applications["default"].deployments
    states = next(d.replica_states for name, d in deployments.items() if name != "Gateway")
    return sum(count for state, count in states.items() if state in ("STARTING", "RUNNING"))


def test_one_to_three_to_one_without_losing_a_request(cluster: Cluster) -> None:
    cluster.deploy(
        engine="simulated",
        engine_args="--ttft 0.02 --itl 0.02",
        max_replicas=3,
        target_ongoing_requests=4,
        downscale_delay_s=3,
        ready=1,
    )
    with ThreadPoolExecutor(40) as pool:
        # Ten streams of 10 s call for three replicas; two of 25 s outlive the way down.
        short = [pool.submit(stream, cluster, 500) for _ in range(10)]
        long = [pool.submit(stream, cluster, 1250) for _ in range(2)]
        # The decision is promised within 3 s; the rest is a busy machine's.
        eventually(lambda: wanted_replicas() == 3, 10, "three replicas wanted")
        eventually(lambda: len(cluster.ready()) == 3, 30, "three replicas ready")
        more = [pool.submit(stream, cluster, 50) for _ in range(20)]
        eventually(lambda: len(cluster.ready()) == 1, 60, "one replica again")
        answers = [future.result() for future in short + long + more]
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
    assert [answer.count(b'"content"') for answer in answers[:12]] == [501] * 10 + [1251] * 2


def test_from_nothing_and_back_every_waiting_request_is_served(cluster: Cluster) -> None:
    cluster.deploy(
        engine="simulated",
        engine_args="--ttft 0.02 --itl 0.01 --start-seconds 2",
        min_replicas=0,
        max_replicas=2,
        downscale_delay_s=1,
        ready=1,
    )
    eventually(lambda: not cluster.ready(), 60, "no replica is left")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: stream(cluster, 20), range(8)))
    assert all(answer.endswith(b"data: [DONE]\n\n") for answer in answers)
    eventually(lambda: not cluster.ready(), 60, "no replica is left again")


def test_a_wake_that_takes_too_long_says_so_and_when_to_come_back(cluster: Cluster) -> None:
    cluster.deploy(
        engine="simulated",
        engine_args="--start-seconds 5",
        min_replicas=0,
        max_replicas=1,
        downscale_delay_s=1,
        gateway={"wake_timeout_s": 1},
        ready=1,
    )
    eventually(lambda: not cluster.ready(), 60)
    answer = cluster.chat()
    assert answer.status_code == 503
    assert "wake" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) >= 1
