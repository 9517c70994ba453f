from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from serve_apps.picker import pick
from serve_apps.prefixes import NO_PREFIX, Prefix

ASKED = Prefix((1,), 4096)


@dataclass
class Place:
    in_flight: int = 0
    last_picked: int = 0
    cool_until: float = 0.0
    capacity: int = 40
    elsewhere: float = 0.0
    has: float = 0.0

    def others(self, now: float) -> float:
        return self.elsewhere

    def share(self, prefix: Prefix) -> float:
        return self.has if prefix == ASKED else 0.0


def others(*counts: float) -> list[Place]:
    return [Place(in_flight=1, elsewhere=count) for count in counts]


CASES = {
    "fewest in flight": ([Place(2), Place(1), Place(3)], 1),
    "longest unpicked among equals": ([Place(1, 9), Place(1, 3), Place(1, 5)], 1),
    "full ones are passed over": ([Place(1, capacity=1), Place(3)], 1),
    "cooling ones are passed over": ([Place(0, cool_until=11), Place(3)], 1),
    "rested ones are back": ([Place(0, cool_until=10), Place(3)], 0),
    "cooling ones if there are no others": ([Place(1, cool_until=11), Place(0, cool_until=12)], 1),
    "no cooling one while the others are full": ([Place(0, cool_until=11), Place(40)], None),
    "all full": ([Place(40), Place(40)], None),
    "none": ([], None),
    "the prompt's KV": ([Place(0), Place(3, has=0.9)], 1),
    "more of it": ([Place(3, has=0.5), Place(3, has=0.9)], 1),
    "as much of it, and less to do": ([Place(4, has=0.9), Place(3, has=0.9)], 1),
    "its KV is in a busy replica": ([Place(0), Place(9, has=1.0)], 0),
    "a busy one is relative": ([Place(30), Place(40, has=1.0, capacity=99)], 1),
    "its KV is in a full replica": ([Place(0), Place(3, has=1.0, capacity=3)], 0),
    "its KV is in a cooling replica": ([Place(2), Place(0, has=1.0, cool_until=11)], 0),
    "little of it in a busier replica": ([Place(0), Place(2, has=0.1)], 0),
    "little of it among equals": ([Place(2, 1), Place(2, 2, has=0.1)], 1),
    "others' requests": (others(12, 1), 1),
    "others' requests and our own": ([Place(9), Place(1, elsewhere=15)], 0),
    "a small difference in what others have": ([*others(1, 2.9), Place(0, elsewhere=2.5)], 2),
    "a busy one of others, with the KV": ([Place(0), Place(0, elsewhere=15, has=1.0)], 0),
}


@pytest.mark.parametrize(("places", "index"), CASES.values(), ids=CASES)
def test_pick(places: list[Place], index: int | None) -> None:
    assert pick(places, now=10.0, prefix=ASKED) is (None if index is None else places[index])


@pytest.mark.parametrize("prefix", [NO_PREFIX, Prefix((2,), 4096)], ids=["none", "unknown"])
def test_an_idle_fleet_is_used_evenly_also_beside_a_busy_replica(prefix: Prefix) -> None:
    places = [Place(has=0.9), Place(in_flight=1), Place(), Place()]
    counts: Counter[int] = Counter()
    for turn in range(1, 301):
        chosen = pick(places, now=0.0, prefix=prefix)
        assert chosen
        chosen.last_picked = turn
        counts[places.index(chosen)] += 1
    assert counts == {0: 100, 2: 100, 3: 100}
