"""What an engine's output and end tell: the phase of its start, and why it failed."""

from __future__ import annotations

import re
import signal
from collections import deque
from dataclasses import dataclass

from cluster.engines.base import Engine, Phase
from cluster.errors import EngineError, PermanentEngineError, TransientEngineError

TAIL_LINES = 50
_RECENT_LINES = 2000
_WARNING = re.compile(r"\b(WARN(ING)?|ERROR|CRITICAL|FATAL)\b|\w(Error|Exception): |^Traceback")
# Signals that come from a program's own fault: the same start would end in the same way.
_OWN_FAULTS = {signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT}

FIRST_TOKEN = Phase(
    "first token", 300, usual_cause="kernels compiled at their first use, or a hung worker"
)


@dataclass(frozen=True)
class PhaseStarted:
    """A phase began; `previous` (empty at the first) took `previous_seconds`."""

    name: str
    previous: str = ""
    previous_seconds: float = 0.0


class EngineOutput:
    """Reads an engine's lines as they come. Pure: times are given, in monotonic seconds.

    Phases go forward only; one whose line was never seen is skipped. The last is the first token,
    with the engine's own limit where it names such a phase.
    """

    def __init__(self, engine: Engine, now: float) -> None:
        self._engine = engine
        self._phases = engine.phases
        if self._phases[-1].name != FIRST_TOKEN.name:
            self._phases = (*self._phases, FIRST_TOKEN)
        self._index = 0
        self._since = now
        self._recent: deque[str] = deque(maxlen=_RECENT_LINES)
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.last_line = ""

    @property
    def phase(self) -> Phase:
        return self._phases[self._index]

    @property
    def ends_at(self) -> float:
        """When the limit of the present phase passes."""
        return self._since + self.phase.limit_s

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._tail)

    def add(self, line: str, now: float) -> PhaseStarted | None:
        """Take a whole line; return the phase that it begins, if it does."""
        self._recent.append(line)
        self._tail.append(line)
        return self.glance(line, now)

    def overhear(self, name: str, line: str) -> None:
        """Take a line of another of the engine's processes: it may tell a cause, but no phase."""
        self._recent.append(line)
        self._tail.append(f"{name}: {line}")

    def glance(self, text: str, now: float) -> PhaseStarted | None:
        """Take one state of a progress bar: it may begin a phase, but is no line to keep."""
        self.last_line = text
        for index in reversed(range(self._index + 1, len(self._phases))):
            begins = self._phases[index].begins
            if begins is not None and begins.search(text):
                return self._enter(index, now)
        return None

    def first_token(self, now: float) -> PhaseStarted | None:
        """The server is up: what remains is one token."""
        last = len(self._phases) - 1
        return self._enter(last, now) if self._index < last else None

    def ready(self) -> None:
        """What was said while starting explains no later death."""
        self._recent.clear()

    def _enter(self, index: int, now: float) -> PhaseStarted:
        started = PhaseStarted(self._phases[index].name, self.phase.name, now - self._since)
        self._index, self._since = index, now
        return started

    def explain(
        self, saw: str, why: str = "", remedy: str = "", transient: bool = False
    ) -> EngineError:
        """The error for what happened: the first known failure in the lines or in `saw`.

        A failure's first sign is nearest to its cause: what follows are its consequences. `why`,
        `remedy` and `transient` hold where none is known.
        """
        for line in (*self._recent, saw):
            for failure in self._engine.failures:
                if match := failure.pattern.search(line):
                    return failure.error(saw, match, self.tail)
        kind = TransientEngineError if transient else PermanentEngineError
        return kind(saw, why, remedy, self.tail)

    def overdue(self) -> EngineError:
        """The error for a phase that has passed its limit."""
        phase = self.phase
        cause = f"the usual cause is {phase.usual_cause}" if phase.usual_cause else ""
        return self.explain(
            f'{self._engine.name}: the phase "{phase.name}" has not ended within its limit of '
            f'{phase.limit_s:g} s; the last line was "{self.last_line}"',
            cause,
        )


def looks_like_warning(line: str) -> bool:
    return _WARNING.search(line) is not None


def killed_from_outside(code: int) -> bool:
    """Whether `code`, an exit code or minus a signal, is no fault of the program itself."""
    return code < 0 and -code not in _OWN_FAULTS


def ending(code: int) -> str:
    """Say how a process ended: `code` is its exit code, or minus the signal that killed it.

    A shell in between turns signal n into exit code 128 + n.
    """
    number = -code if code < 0 else code - 128
    if number not in signal.valid_signals():
        return f"ended with exit code {code}"
    name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
    told = f"killed by {name} ({signal.strsignal(number)})"
    return f"was {told}" if code < 0 else f"ended with exit code {code}: something in it was {told}"
