from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from cluster.directory import Picture, ReplicaRecord, ReplicaState
from cluster.errors import ModelNotFound, NoReplicaReady, QueueFull
from serve_apps.fleet import Fleet
from serve_apps.limits import GatewayLimits

READY, DEAD = ReplicaState.READY, ReplicaState.DEAD


def record(name: str, state: ReplicaState = READY, **fields: Any) -> ReplicaRecord:
    facts: dict[str, Any] = {"model": "m", "since": 0.0, "max_ongoing_requests": 1} | fields
    return ReplicaRecord(
        replica_id=name,
        app="app",
        deployment="d",
        version="1",
        engine="simulated",
        node_id="n",
        state=state,
        **facts,
    )


def fleet(*records: ReplicaRecord, **limits: Any) -> Fleet:
    made = Fleet(["m", "other"], GatewayLimits(**limits))
    made.update(Picture("e", 1, True, records))
    return made


async def hold(fleet: Fleet, release: asyncio.Event, got: list[str] | None = None) -> None:
    async with fleet.reserve("m") as replica:
        if got is not None:
            got.append(replica.id)
        await release.wait()


def in_flight(fleet: Fleet) -> int:
    return sum(replica.in_flight for replica in fleet.replicas("m"))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("state", [s for s in ReplicaState if s is not READY])
async def test_only_ready_replicas_are_offered(state: ReplicaState) -> None:
    several = fleet(record("a", state), record("b", max_ongoing_requests=9))
    for _ in range(3):
        async with several.reserve("m") as replica:
            assert replica.id == "b"


UNREADY = {
    "no replica": ([], "has no replica"),
    "starting": (
        [
            record("a", DEAD, cause="old"),
            record("b", ReplicaState.STARTING, phase="loading weights"),
        ],
        "is starting: phase loading weights",
    ),
    "dead": (
        [record("a", DEAD, since=2, cause="SIGILL"), record("b", DEAD, since=1, cause="old")],
        "died: SIGILL",
    ),
    "stalled": ([record("a", ReplicaState.STALLED, cause="no token for 8 s")], "no token for 8 s"),
    "draining": ([record("a", ReplicaState.DRAINING)], "is draining"),
}


@pytest.mark.parametrize(("records", "text"), UNREADY.values(), ids=UNREADY)
async def test_without_a_ready_replica_503_says_why_at_once(
    records: list[ReplicaRecord], text: str
) -> None:
    with pytest.raises(NoReplicaReady, match=text) as caught:
        async with fleet(*records, retry_after_s=3.0).reserve("m"):
            pass
    assert caught.value.retry_after_s == 3.0


async def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(ModelNotFound, match='did you mean "other"') as caught:
        async with fleet().reserve("othr"):
            pass
    assert caught.value.param == "model"


def test_configured_models_are_listed_before_they_are_ready() -> None:
    assert fleet(record("a", model="stranger")).models() == ("m", "other")


async def test_incomplete_picture_removes_nothing_but_believes_in_death() -> None:
    several = fleet(record("a"), record("b"))
    several.update(Picture("f", 1, False, (record("b", DEAD),)))
    assert [r.id for r in several.replicas("m") if r.ready] == ["a"]
    several.update(Picture("f", 2, True, (record("b", DEAD),)))
    assert not any(r.ready for r in several.replicas("m"))


async def test_a_replica_that_comes_back_still_counts_what_was_open_on_it() -> None:
    one, release = fleet(record("a", max_ongoing_requests=2)), asyncio.Event()
    holder = asyncio.create_task(hold(one, release))
    await settle()
    one.update(Picture("e", 2, True))
    assert not one.offers("m")
    one.update(Picture("e", 3, True, (record("a", max_ongoing_requests=2),)))
    assert in_flight(one) == 1
    release.set()
    await holder
    assert in_flight(one) == 0


async def test_full_replicas_make_requests_wait_in_order_up_to_a_bound() -> None:
    one, release = fleet(record("a"), max_queued_requests=2), asyncio.Event()
    order: list[int] = []

    async def queue(number: int) -> None:
        async with one.reserve("m"):
            order.append(number)

    holder = asyncio.create_task(hold(one, release))
    await settle()
    waiting = [asyncio.create_task(queue(n)) for n in range(2)]
    await settle()
    assert one.queued("m") == 2
    with pytest.raises(QueueFull) as caught:
        await queue(2)
    assert caught.value.retry_after_s == 1.0
    release.set()
    await asyncio.gather(holder, *waiting)
    assert order == [0, 1]
    assert (one.queued("m"), in_flight(one)) == (0, 0)


async def test_waiting_has_a_limit() -> None:
    one, release = fleet(record("a"), queue_timeout_s=0.02), asyncio.Event()
    holder = asyncio.create_task(hold(one, release))
    await settle()
    with pytest.raises(NoReplicaReady, match=r"busy for 0\.02 s"):
        await hold(one, release)
    assert (one.queued("m"), in_flight(one)) == (0, 1)
    release.set()
    await holder


async def test_those_who_wait_are_told_when_the_last_replica_dies() -> None:
    one, release = fleet(record("a")), asyncio.Event()
    holder, waiter = (asyncio.create_task(hold(one, release)) for _ in range(2))
    await settle()
    one.update(Picture("e", 2, True, (record("a", DEAD, cause="SIGKILL"),)))
    with pytest.raises(NoReplicaReady, match="SIGKILL"):
        await waiter
    release.set()
    await holder


async def test_those_who_wait_get_a_new_replica() -> None:
    one, release, got = fleet(record("a")), asyncio.Event(), list[str]()
    tasks = [asyncio.create_task(hold(one, release, got)) for _ in range(2)]
    await settle()
    one.update(Picture("e", 2, True, (record("a"), record("b"))))
    await settle()
    assert got == ["a", "b"]
    release.set()
    await asyncio.gather(*tasks)


async def test_counts_stay_exact_when_clients_leave_while_they_wait() -> None:
    one, release = fleet(record("a")), asyncio.Event()
    holder, leaver, granted = (asyncio.create_task(hold(one, release)) for _ in range(3))
    await settle()
    leaver.cancel()
    await settle()
    assert one.queued("m") == 1
    holder.cancel()  # gives its place to the last one,
    await asyncio.sleep(0)
    granted.cancel()  # which leaves in the moment in which it is granted
    await asyncio.gather(holder, leaver, granted, return_exceptions=True)
    assert (one.queued("m"), in_flight(one)) == (0, 0)


async def test_a_request_that_excludes_replicas_does_not_hold_up_the_queue() -> None:
    two = fleet(record("a"), record("b"))
    releases = {name: asyncio.Event() for name in "ab"}
    entered: list[str] = []

    async def work(name: str, excluded: set[str]) -> None:
        async with two.reserve("m", excluded) as replica:
            entered.append(f"{name}{replica.id}")
            await releases[replica.id].wait()

    holders = [asyncio.create_task(work("1", {"b"})), asyncio.create_task(work("2", {"a"}))]
    await settle()
    waiters = [asyncio.create_task(work("3", {"a"})), asyncio.create_task(work("4", set()))]
    await settle()
    releases["a"].set()
    await settle()
    assert entered == ["1a", "2b", "4a"]
    releases["b"].set()
    await asyncio.gather(*holders, *waiters)
    assert entered[3] == "3b"


async def test_a_broken_replica_is_avoided_for_a_while() -> None:
    two = fleet(record("a"), record("b"), broken_cooldown_s=0.05)
    release, got = asyncio.Event(), list[str]()
    broken = next(r for r in two.replicas("m") if r.id == "a")
    two.cool_down(broken)
    first = asyncio.create_task(hold(two, release, got))
    await settle()
    second = asyncio.create_task(hold(two, release, got))
    await settle()
    assert got == ["b"]
    await asyncio.sleep(0.1)  # nothing else happens: the end of the cool-down alone serves it
    assert got == ["b", "a"]
    release.set()
    await asyncio.gather(first, second)


async def test_a_lone_broken_replica_is_still_tried() -> None:
    one = fleet(record("a"))
    one.cool_down(*one.replicas("m"))
    async with one.reserve("m") as replica:
        assert replica.id == "a"


Ask = Callable[[], Coroutine[Any, Any, None]]
Load = Callable[[Ask, int], Awaitable[None]]


async def closed_loop(request: Ask, total: int) -> None:
    """Sixteen clients, each of which sends its next request when it has an answer."""
    numbers = iter(range(total))

    async def client() -> None:
        for _ in numbers:
            await request()

    await asyncio.gather(*(client() for _ in range(16)))


async def open_loop(request: Ask, total: int) -> None:
    """Requests come at their own times, whether earlier ones are answered or not."""
    chance = random.Random(1)
    requests = []
    for _ in range(total):
        requests.append(asyncio.create_task(request()))
        await asyncio.sleep(chance.expovariate(1 / 0.0005))
    await asyncio.gather(*requests)


@pytest.mark.parametrize("load", [closed_loop, open_loop])
async def test_a_stalled_replica_gets_at_most_a_tenth_of_requests(load: Load) -> None:
    two = fleet(*(record(name, max_ongoing_requests=256) for name in ("good", "stalled")))
    counts: Counter[str] = Counter()
    all_sent = asyncio.Event()

    async def request() -> None:
        async with two.reserve("m") as replica:
            counts[replica.id] += 1
            if counts.total() == 500:
                all_sent.set()
            if replica.id == "stalled":
                await all_sent.wait()
            await asyncio.sleep(0.003)

    await load(request, 500)
    assert counts["good"] >= 0.9 * counts.total()
    assert in_flight(two) == 0


async def test_a_model_that_sleeps_is_woken_and_its_requests_wait() -> None:
    woken: list[str] = []
    sleeper = Fleet(["m"], wake={"m": lambda: woken.append("m")})

    async def ask() -> str:
        async with sleeper.reserve("m") as replica:
            return replica.id

    waiting = [asyncio.create_task(ask()) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert woken
    assert sleeper.queued("m") == 3
    sleeper.update(Picture("e", 1, True, (record("a", ReplicaState.STARTING),)))
    await asyncio.sleep(0.01)
    assert sleeper.queued("m") == 3
    sleeper.update(Picture("e", 2, True, (record("a"),)))
    assert await asyncio.gather(*waiting) == ["a"] * 3


async def test_a_wake_has_a_limit_that_is_told_with_what_was_last_seen() -> None:
    sleeper = Fleet(["m"], GatewayLimits(wake_timeout_s=0.05), wake={"m": lambda: None})
    starting = record("a", ReplicaState.STARTING, phase="loading weights")
    sleeper.update(Picture("e", 1, True, (starting,)))
    with pytest.raises(NoReplicaReady, match=r"did not wake in 0.05 s: .*loading weights") as told:
        async with sleeper.reserve("m"):
            pass
    assert told.value.retry_after_s
    assert sleeper.queued("m") == 0
