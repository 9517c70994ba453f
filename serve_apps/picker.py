"""Which replica gets a request: a pure function over candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """What the pick looks at.

    `in_flight` are requests that this gateway has open there, `capacity` how many it may have,
    `last_picked` a number that grows with every pick, `cool_until` a monotonic time in seconds.
    """

    @property
    def in_flight(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def last_picked(self) -> int: ...
    @property
    def cool_until(self) -> float: ...


C = TypeVar("C", bound=Candidate)


def pick(candidates: Sequence[C], now: float) -> C | None:
    """Return the candidate with the fewest requests in flight, or None when all are full.

    Among equals the one that was picked longest ago goes first, so an idle fleet is used evenly.
    Replicas that cool down are passed over, unless there are no others: a refused connection is
    then no worse than a refused request.
    """
    rested = [c for c in candidates if c.cool_until <= now] or candidates
    free = [c for c in rested if c.in_flight < c.capacity]
    return min(free, key=lambda c: (c.in_flight, c.last_picked), default=None)
