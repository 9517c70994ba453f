"""Prompts that begin alike go where their KV is, and gateways know how busy replicas are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from cluster.engines.prometheus import sample_sums
from tests.cluster.harness import Cluster, eventually

ASKED, FOUND = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
SYSTEM = "You answer questions on the tides of the sea, briefly and kindly. " * 30


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> Iterator[Cluster]:
    cluster.deploy(
        engine="simulated", num_replicas=2, engine_args="--ttft 0.01 --itl 0.002 --kv-blocks 8192"
    )
    return cluster


def cache(app: Cluster) -> list[dict[str, float]]:
    texts = [httpx.get(replica.url + "/metrics").text for replica in app.ready()]
    return [sample_sums(text, (ASKED, FOUND)) for text in texts]


def gained(app: Cluster, before: list[dict[str, float]]) -> list[dict[str, float]]:
    """What was asked and found in each replica's cache since then."""
    pairs = zip(cache(app), before, strict=True)
    return [{name: now[name] - was[name] for name in now} for now, was in pairs]


def talk(app: Cluster, topic: str, turns: int = 8) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{topic} " * 200}]
    for turn in range(turns):
        answer = app.client.post(
            "/v1/chat/completions", json={"messages": messages, "max_tokens": 16}
        )
        messages.append(answer.json()["choices"][0]["message"])
        messages.append({"role": "user", "content": f"and {turn}? " * 20})


def test_every_turn_of_a_chat_finds_the_ones_before_it(app: Cluster) -> None:
    before = cache(app)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: talk(app, f"topic {n}"), range(8)))
    counts = gained(app, before)
    asked, found = (sum(count[name] for count in counts) for name in (ASKED, FOUND))
    # The first turn of eight finds nothing, the later ones all but what is new.
    assert found / asked > 0.7
    assert min(count[ASKED] for count in counts) > 0.2 * asked, "both replicas work"


def test_a_system_prompt_that_all_share_is_found_and_does_not_overload_a_replica(
    app: Cluster,
) -> None:
    before = cache(app)

    def ask(number: int) -> None:
        system = {"role": "system", "content": SYSTEM}
        question = {"role": "user", "content": f"{number} and the moon?"}
        body = {"messages": [system, question], "max_tokens": 100}
        app.client.post("/v1/chat/completions", json=body).raise_for_status()

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(ask, range(120)))
    counts = gained(app, before)
    asked, found = (sum(count[name] for count in counts) for name in (ASKED, FOUND))
    assert found / asked > 0.85
    assert min(count[ASKED] for count in counts) > 0.2 * asked, "both replicas work"


def test_engines_counts_reach_the_directory_and_a_gateway_prefers_the_idle_replica(
    app: Cluster,
) -> None:
    busy, _ = app.ready()
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}
    with ThreadPoolExecutor(20) as pool:
        # Straight to the engine: as another gateway's requests, which this one knows nothing of.
        long = [
            pool.submit(httpx.post, busy.url + "/v1/completions", json=body, timeout=60)
            for _ in range(20)
        ]
        started = time.monotonic()
        eventually(lambda: _load(app, busy.replica_id) == 20, 10, "20 in the directory")
        assert time.monotonic() - started < 5  # 1.3 s; the rest is a busy machine
        time.sleep(1)  # the gateways' next picture
        before = cache(app)
        for _ in range(10):
            assert app.chat().status_code == 200
        at_busy, at_idle = (count[ASKED] for count in gained(app, before))
        assert (at_busy, at_idle > 0) == (0, True)
        for request in long:
            request.result()
    eventually(lambda: _load(app, busy.replica_id) == 0, 10, "none in the directory")


def _load(app: Cluster, replica_id: str) -> int:
    load = app.picture().loads.get(replica_id)
    return load.requests if load else 0
