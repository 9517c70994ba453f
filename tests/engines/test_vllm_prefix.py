"""Two real vLLM replicas: what begins alike is computed once, by vLLM's own counters."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.engines.prometheus import sample_sums
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ASKED, FOUND = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
CHATS, TURNS = 6, 5


@pytest.fixture(scope="module")
def app(cluster: Cluster, tiny_model: Path) -> Iterator[Cluster]:
    cluster.deploy(
        model=str(tiny_model), served_model_name="tiny", num_replicas=2, ready=2, within=600
    )
    return cluster


def cache(app: Cluster) -> list[dict[str, float]]:
    texts = [httpx.get(replica.url + "/metrics").text for replica in app.ready()]
    return [sample_sums(text, (ASKED, FOUND)) for text in texts]


def talk(app: Cluster, number: int) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{number} rain and sun " * 24}]
    for turn in range(TURNS):
        body = {"messages": messages, "max_tokens": 8, "temperature": 0}
        answer = app.client.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        messages.append({"role": "assistant", "content": f"yes, {turn} " * 4})
        messages.append({"role": "user", "content": f"and {turn} more? " * 4})


def test_every_turn_of_a_chat_finds_the_ones_before_it_in_vllms_cache(app: Cluster) -> None:
    before = cache(app)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda number: talk(app, number), range(CHATS)))
    gained = [
        {name: now[name] - was[name] for name in now}
        for now, was in zip(cache(app), before, strict=True)
    ]
    asked, found = (sum(counts[name] for counts in gained) for name in (ASKED, FOUND))
    print(f"vLLM found {found:.0f} of {asked:.0f} prompt tokens in its caches: {gained}")
    # Four of five turns find what was said before, except for the newest words and half a block.
    assert found / asked > 0.5
    assert min(counts[ASKED] for counts in gained) > 0.15 * asked, "both replicas work"
