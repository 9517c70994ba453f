"""What a gateway tells whoever measures it: the seam that keeps its modules free of metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cluster.errors import RequestError


@dataclass
class RequestTrace:
    """One request for a model, as the relay saw it; times are monotonic seconds.

    `first` and `last` are when a stream's first and last events came (0: none did),
    `later_events` counts those after the first piece, `queued_s` is how long the request waited
    for replicas. `outcome` is "ok", "engine_error" (the engine refused), "client_gone", "failed"
    (a fault of ours), or the code of a RequestError.
    """

    model: str
    arrived: float = field(default_factory=time.monotonic)
    queued_s: float = 0.0
    first: float = 0.0
    last: float = 0.0
    ended: float = 0.0
    later_events: int = 0
    outcome: str = ""
    _asked: float = 0.0

    def asks(self) -> None:
        """The request begins to wait for a replica."""
        self._asked = time.monotonic()

    def stops_asking(self) -> None:
        """It has a replica, or has given up."""
        if self._asked:
            self.queued_s += time.monotonic() - self._asked
            self._asked = 0.0

    def saw(self, events: bytes) -> None:
        """Note a piece of a stream, which ends with an event's end."""
        if self.last:
            self.later_events += events.count(b"\n\n")
        self.last = time.monotonic()

    @property
    def itl_s(self) -> float | None:
        """Mean seconds between a stream's tokens; None where it had too few.

        One mean for a request: a measurement for each token would cost more than relaying it. The
        events of the first piece (in chats the role comes with the first token) and `[DONE]`, which
        comes with the last one, end no gap.
        """
        gaps = self.later_events - 1
        return (self.last - self.first) / gaps if gaps > 0 else None


class Observer:
    """Is told what happens in the gateway called `name`; this one takes no notice."""

    name = ""

    @contextmanager
    def following(self, model: str) -> Iterator[RequestTrace]:
        """Give the trace of a request that happens inside, and tell of it when it has ended."""
        trace = RequestTrace(model)
        try:
            yield trace
            trace.outcome = trace.outcome or "ok"
        except RequestError as error:
            trace.outcome = error.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            trace.outcome = "client_gone"
            raise
        except Exception:
            trace.outcome = "failed"
            raise
        finally:
            trace.stops_asking()
            trace.ended = time.monotonic()
            self.finished(trace)

    def picked(self, model: str, reason: str) -> None:
        """A replica of `model` was picked, for a `reason` out of a few."""

    def finished(self, trace: RequestTrace) -> None:
        """A request for a model has ended, in whichever way."""

    def answered(self, status: int) -> None:
        """An HTTP request was answered; 499 where its client went away before that."""

    def exposition(self) -> str:
        """What was measured, in Prometheus' text format."""
        return ""
