"""Queueing, refusing and spreading: what happens when replicas are full, stalled or absent."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cluster.directory import ReplicaState
from tests.cluster.harness import Cluster, eventually


@pytest.fixture(autouse=True)
def fresh(cluster: Cluster) -> Iterator[None]:
    yield
    from ray import serve

    serve.delete("default")
    eventually(lambda: not cluster.replicas(ReplicaState.READY, ReplicaState.DRAINING), 60)


def switch(url: str, **switches: object) -> None:
    httpx.post(url + "/simulate", json=switches).raise_for_status()


def served(url: str) -> int:
    """How many requests this engine has begun or finished."""
    total = 0
    for line in httpx.get(url + "/metrics").text.splitlines():
        if line.startswith(("vllm:request_success_total", "vllm:num_requests_")):
            total += int(float(line.rsplit(" ", 1)[1]))
    return total


def test_a_stalled_replica_gets_at_most_a_tenth_of_new_requests(cluster: Cluster) -> None:
    cluster.deploy(engine="simulated", num_replicas=2, engine_args="--ttft 0.02 --itl 0.005")
    stalled, sound = (replica.url for replica in cluster.ready())
    switch(stalled, stall=True)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(200):
            pool.submit(_try_chat, cluster)
        eventually(lambda: served(sound) >= 180, 60, "the sound replica serves nine in ten")
        assert served(stalled) <= 20
        eventually(
            lambda: cluster.replicas(ReplicaState.STALLED), 15, "the stall is in the directory"
        )
        switch(stalled, stall=False)
    eventually(lambda: len(cluster.ready()) == 2, 15, "tokens again: ready again")


def test_a_full_queue_answers_429_and_says_when_to_come_back(cluster: Cluster) -> None:
    cluster.deploy(
        engine="simulated",
        max_ongoing_requests=1,
        engine_args="--ttft 1.5",
        gateway={"max_queued_requests": 1, "retry_after_s": 3},
    )
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: cluster.chat(), range(6)))
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200, 200, 429, 429, 429, 429]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.headers["retry-after"] == "3"
    assert refused.json()["error"]["code"] == "queue_full"


def test_while_nothing_is_ready_503_tells_what_the_replica_is_doing(cluster: Cluster) -> None:
    cluster.begin(engine="simulated", engine_args="--start-seconds 6")
    answer = eventually(lambda: _answer_of_gateway(cluster, "starting"), 30)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    eventually(lambda: cluster.chat().status_code == 200, 30)


@pytest.mark.parametrize(
    ("switches", "code"),
    [({"refuse": "reset"}, 200), ({"error_status": 503}, 503)],
    ids=["a reset before the first byte goes elsewhere", "an answer is an answer"],
)
def test_only_silence_is_retried(cluster: Cluster, switches: dict[str, object], code: int) -> None:
    cluster.deploy(engine="simulated", num_replicas=2)
    switch(cluster.ready()[0].url, **switches)
    codes = {cluster.chat().status_code for _ in range(10)}
    assert code in codes
    assert codes <= {200, code}


def _try_chat(cluster: Cluster) -> None:
    try:
        cluster.chat()
    except httpx.HTTPError:
        return


def _answer_of_gateway(cluster: Cluster, word: str) -> httpx.Response | None:
    """Serve itself answers 404 until the gateway runs; the gateway answers in OpenAI's shape."""
    answer = cluster.chat()
    return answer if "error" in answer.text and word in answer.text else None
