"""How busy a replica is, as far as one gateway can know."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.directory import IDLE, Load

# Older news than this say nothing; replicas with work send some every second.
_NEWS_TTL_S = 5.0
_NEW_WEIGHT = 0.3


@dataclass
class OpenRequests:
    """What this gateway has open on a replica, and what others have, by the engine's own count.

    The count was taken a moment ago, and nobody knows how many of our own requests were in it.
    All that can have been are taken off: the most that were open at once of late. So a gateway
    that is alone sees no others, whatever came and went meanwhile, and one that is not may see
    too few of them but none that is its own.
    """

    own: int = 0
    _others: float = 0.0
    _news: Load = IDLE
    _heard: float = float("-inf")
    _peaks: tuple[int, int] = (0, 0)

    def opened(self) -> None:
        self.own += 1
        before, latest = self._peaks
        self._peaks = before, max(latest, self.own)

    def closed(self) -> None:
        self.own -= 1

    def hear(self, news: Load, now: float) -> None:
        """Take over the engine's count; `now` is a monotonic time in seconds."""
        if news.sampled == self._news.sampled:
            return
        counted = max(0, news.requests - max(self._peaks))
        before = self.others(now) if self._is_fresh(now) else counted
        self._others = before + _NEW_WEIGHT * (counted - before)
        self._news, self._heard = news, now
        self._peaks = self._peaks[1], self.own

    def others(self, now: float) -> float:
        """Requests of other gateways, averaged over the last seconds; without news of late, 0."""
        return self._others if self._is_fresh(now) else 0.0

    def _is_fresh(self, now: float) -> bool:
        return now - self._heard <= _NEWS_TTL_S
