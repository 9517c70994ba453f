from __future__ import annotations

import pytest

from cluster.engines.base import Stats
from serve_apps.progress import Progress

BUSY = Stats(running=1, tokens=5)


@pytest.mark.parametrize(
    ("seen", "stalled", "ill"),
    [
        ([(0, Stats()), (100, Stats())], False, False),
        ([(0, BUSY), (7, BUSY)], False, False),
        ([(0, BUSY), (8, BUSY)], True, False),
        ([(0, BUSY), (50, BUSY), (120, BUSY)], True, True),
        ([(0, BUSY), (119, BUSY), (121, Stats(running=1, tokens=6))], False, False),
        ([(0, Stats()), (100, BUSY), (107, BUSY)], False, False),
        ([(0, Stats(2, 3, tokens=5)), (9, Stats(1, 3, tokens=5))], False, False),
        ([(0, Stats(waiting=1)), (8, Stats(waiting=1))], True, False),
    ],
    ids=[
        "idle is healthy",
        "a short pause is healthy",
        "work and no token is a stall",
        "a long stall is an illness",
        "one token heals",
        "the clock starts with the work",
        "an abort is progress",
        "waiting is work",
    ],
)
def test_health_is_progress(seen: list[tuple[float, Stats]], stalled: bool, ill: bool) -> None:
    progress = Progress(stall_after_s=8, stall_limit_s=120)
    for now, stats in seen:
        progress.update(stats, now)
    assert (progress.stalled, progress.ill) == (stalled, ill)
    if stalled:
        assert "yielded no token for" in progress.told
