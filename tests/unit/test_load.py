"""What a gateway makes of the engines' own counts: others' requests, never its own."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from cluster.directory import Load, Picture
from serve_apps.fleet import Fleet, Replica
from serve_apps.load import OpenRequests
from tests.unit.test_fleet import record


def opened(requests: OpenRequests, change: int) -> None:
    for _ in range(abs(change)):
        (requests.opened if change > 0 else requests.closed)()


# In each step our own requests change by so many, and then the engine counts so many.
HEARD = {
    "alone": ([(3, 3), (0, 3)], 0),
    "alone, with a count from before they came": ([(3, 0)], 0),
    "alone, with a count from before they went": ([(5, 5), (-5, 5)], 0),
    "alone, with a late count from before they went": ([(5, 5), (-5, 0), (0, 5)], 0),
    "others from the start": ([(0, 7)], 7),
    "others beside our own": ([(3, 10)], 7),
    "others are averaged": ([(0, 10), (0, 0)], 7),
    "others have gone": ([(0, 10), *[(0, 0)] * 20], 0),
    "our own have gone": ([(5, 12), (-5, 7), (0, 7), *[(0, 7)] * 20], 7),
}


@pytest.mark.parametrize(("steps", "others"), HEARD.values(), ids=HEARD)
def test_others_are_what_the_engine_counts_without_our_own(
    steps: list[tuple[int, int]], others: float
) -> None:
    requests = OpenRequests()
    for second, (change, counted) in enumerate(steps, 1):
        opened(requests, change)
        requests.hear(Load(counted, 0, sampled=second), now=second)
    assert requests.others(len(steps)) == pytest.approx(others, abs=0.1)


def test_a_gateway_that_is_alone_sees_no_others_whatever_comes_and_goes() -> None:
    chance, requests, counts = random.Random(0), OpenRequests(), [0]
    for tick in range(1, 2000):
        opened(requests, chance.randint(-min(3, requests.own), 3))
        counts.append(requests.own)
        if tick % 10 == 0:  # once a second, a count that is up to half a second old
            count = counts[-chance.randint(1, 5)]
            requests.hear(Load(count, 0, sampled=tick), now=tick / 10)
            assert requests.others(tick / 10) == 0


def test_old_news_are_forgotten_and_the_same_news_count_once() -> None:
    requests = OpenRequests()
    requests.hear(Load(4, 6, sampled=1), now=100.0)
    requests.hear(Load(0, 0, sampled=1), now=104.0)
    assert requests.others(104.9) == 10
    assert requests.others(105.1) == 0
    requests.hear(Load(2, 0, sampled=2), now=200.0)
    assert requests.others(200.0) == 2


class Gateways:
    """Fleets that see the same replicas, and engines that count what all of them have open."""

    def __init__(self, gateways: int, replicas: str) -> None:
        self.fleets = [Fleet(["m"]) for _ in range(gateways)]
        self.records = [record(name, max_ongoing_requests=1000) for name in replicas]
        self.sampled = itertools.count(1)
        self.tell()

    def tell(self) -> None:
        number = next(self.sampled)
        loads = {name: Load(count, 0, number) for name, count in self.open().items()}
        for fleet in self.fleets:
            fleet.update(Picture("e", number, True, tuple(self.records), number, loads))

    def replicas(self) -> list[Replica]:
        return [replica for fleet in self.fleets for replica in fleet.replicas("m")]

    def open(self) -> Counter[str]:
        counts = Counter({r.replica_id: 0 for r in self.records})
        for replica in self.replicas():
            counts[replica.id] += replica.in_flight
        return counts


async def spread_of(gateways: Gateways, rounds: int = 40, held: int = 40) -> int:
    """Keep `held` requests open by each gateway; return the largest difference of replicas."""
    chance, spreads = random.Random(1), []
    open_: list[list[object]] = [[] for _ in gateways.fleets]
    for _ in range(rounds):
        for fleet, mine in zip(gateways.fleets, open_, strict=True):
            chance.shuffle(mine)
            for context in mine[: held // 2]:
                await context.__aexit__(None, None, None)  # type: ignore[attr-defined]
            del mine[: held // 2]
            while len(mine) < held:
                context = fleet.reserve("m")
                await context.__aenter__()
                mine.append(context)
        counts = gateways.open().values()
        spreads.append(max(counts) - min(counts))
        gateways.tell()
    return max(spreads[5:])


async def test_two_gateways_do_not_run_after_one_another() -> None:
    assert await spread_of(Gateways(2, "abcd")) <= 4


async def test_two_gateways_share_replicas_of_which_one_is_busy_with_the_others_requests() -> None:
    """One gateway has long streams on a replica; the other did not send them, but sees them."""
    two = Gateways(2, "ab")
    busy = two.fleets[0].replicas("m")[0]
    opened(busy.requests, 30)
    for _ in range(10):
        two.tell()
    fresh = two.fleets[1]
    contexts = [fresh.reserve("m") for _ in range(20)]
    for context in contexts:
        await context.__aenter__()
    counts = Counter({replica.id: replica.in_flight for replica in fresh.replicas("m")})
    assert counts["b"] == 20, "all go where there is room"
    for context in contexts:
        await context.__aexit__(None, None, None)
