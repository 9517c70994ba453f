"""What a check found: one thing that is wrong, or worth knowing, told like an error but not raised.

A check returns all it finds, so that one look at a machine names every fault of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cluster.errors import RayscendError


class Level(StrEnum):
    """ERROR: a start would fail or serve wrongly. WARNING: it may. NOTE: good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """One finding.

    `code` names the kind of fault and stays the same over releases; `saw`, `why` and `remedy` are
    those of `RayscendError`; `link` is where the rule comes from, if that is public.
    """

    code: str
    level: Level
    saw: str
    why: str
    remedy: str = ""
    link: str = ""

    @classmethod
    def of(cls, code: str, error: RayscendError, level: Level = Level.ERROR) -> Finding:
        """The finding that tells the same as `error`."""
        return cls(code, level, error.saw, error.why, error.remedy)

    def __str__(self) -> str:
        return f"{self.level}: {RayscendError(self.saw, self.why, self.remedy)} [{self.code}]"
