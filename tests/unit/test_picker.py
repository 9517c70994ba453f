from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from serve_apps.picker import pick


@dataclass
class Place:
    in_flight: int = 0
    last_picked: int = 0
    cool_until: float = 0.0
    capacity: int = 4


CASES = {
    "fewest in flight": ([Place(2), Place(1), Place(3)], 1),
    "longest unpicked among equals": ([Place(1, 9), Place(1, 3), Place(1, 5)], 1),
    "full ones are passed over": ([Place(1, capacity=1), Place(3)], 1),
    "cooling ones are passed over": ([Place(0, cool_until=11), Place(3)], 1),
    "rested ones are back": ([Place(0, cool_until=10), Place(3)], 0),
    "cooling ones if there are no others": ([Place(1, cool_until=11), Place(0, cool_until=12)], 1),
    "no cooling one while the others are full": ([Place(0, cool_until=11), Place(4)], None),
    "all full": ([Place(4), Place(4)], None),
    "none": ([], None),
}


@pytest.mark.parametrize(("places", "index"), CASES.values(), ids=CASES)
def test_pick(places: list[Place], index: int | None) -> None:
    assert pick(places, now=10.0) is (None if index is None else places[index])


def test_an_idle_fleet_is_used_evenly_also_beside_a_busy_replica() -> None:
    places = [Place(), Place(in_flight=1), Place(), Place()]
    counts: Counter[int] = Counter()
    for turn in range(1, 301):
        chosen = pick(places, now=0.0)
        assert chosen
        chosen.last_picked = turn
        counts[places.index(chosen)] += 1
    assert counts == {0: 100, 2: 100, 3: 100}
