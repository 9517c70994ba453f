"""What a check has to say, and the one error of this package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

HCCL_A2 = (
    "https://www.hiascend.com/document/detail/en/CANNCommunityEdition/900/API/hcclug/"
    "hcclug_000067.html"
)
HCCL_A3 = (
    "https://www.hiascend.com/document/detail/en/CANNCommunityEdition/900/API/hcclug/"
    "hcclug_000066.html"
)
HCCL_TOOLS = "https://github.com/mindspore-ai/models/tree/master/utils/hccl_tools"
MINDIE = (
    "https://github.com/Ascend/MindIE-LLM/tree/8b4871ad31f592aa863f6255760e4934484d78e4 "
    "(ranktable_config.cpp)"
)
MINDIE_INSTALL = (
    "https://hiascend.com/document/detail/zh/mindie/10RC3/envdeployment/instg/"
    "mindie_instg_0027.html"
)
MOTOR = (
    "https://github.com/Ascend/MindIE-Motor/tree/5dfb024e45feec2e947f12d0af72b79b24edff53 "
    "(RankTableLoader.cpp)"
)
OPERATOR = (
    "https://www.hiascend.com/document/detail/en/mindcluster/730/clustersched/schedulingug/"
    "mxdlug_appendices_009.html"
)


class Level(StrEnum):
    """ERROR: the consumer refuses the table or hangs; WARNING: it works, but not as meant."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    `place` is the path inside the file, such as `server_list[1].device[0].device_ip`, `saw` what
    stands there, `right` what should, `source` where the rule comes from.
    """

    code: str
    place: str
    saw: str
    right: str
    source: str
    level: Level

    def __str__(self) -> str:
        return f"{self.level} {self.code} at {self.place}: {self.saw}; right: {self.right}"


class RankTableError(Exception):
    """A table cannot be read, built or converted.

    Args:
        saw: what was found, with its name and value.
        why: why that is wrong.
        remedy: what to do about it.
        findings: every finding that led here, if checks did.
    """

    def __init__(
        self, saw: str, why: str = "", remedy: str = "", findings: tuple[Finding, ...] = ()
    ) -> None:
        super().__init__(saw, why, remedy, findings)
        self.saw, self.why, self.remedy, self.findings = saw, why, remedy, findings

    def __str__(self) -> str:
        return ". ".join(part.rstrip(".") for part in (self.saw, self.why, self.remedy) if part)


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those findings for which a consumer refuses the table."""
    return tuple(finding for finding in findings if finding.level is Level.ERROR)


def listed(items: Iterable[object], most: int = 5) -> str:
    """The first few items and the number of the others, for a message."""
    words = [str(item) for item in items]
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
