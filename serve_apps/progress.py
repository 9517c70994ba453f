"""Whether an engine gets on with its work: health is progress, not an answered ping."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.engines.base import Stats


@dataclass
class Progress:
    """Fed with an engine's counters; times are monotonic seconds.

    `stalled` after `stall_after_s` with work and no token: no new requests for it.
    `ill` after `stall_limit_s`: it must be replaced.
    """

    stall_after_s: float
    stall_limit_s: float
    _last: Stats | None = None
    _moved: float = 0.0
    _now: float = 0.0

    def update(self, stats: Stats, now: float) -> None:
        busy = stats.running + stats.waiting > 0
        before = self._last
        if (
            before is None
            or not busy
            or before.running + before.waiting == 0
            or stats.tokens != before.tokens
            or stats.running < before.running
        ):
            self._moved = now
        self._last, self._now = stats, now

    @property
    def load(self) -> int:
        """Requests that the engine runs or lets wait."""
        return self._last.running + self._last.waiting if self._last else 0

    @property
    def standing_s(self) -> float:
        """Seconds since the last sign of progress while there was work."""
        return self._now - self._moved

    @property
    def stalled(self) -> bool:
        return self.standing_s >= self.stall_after_s

    @property
    def ill(self) -> bool:
        return self.standing_s >= self.stall_limit_s

    @property
    def told(self) -> str:
        stats = self._last or Stats()
        return (
            f"The engine has {stats.running} running and {stats.waiting} waiting requests and "
            f"yielded no token for {self.standing_s:.0f} s."
        )
