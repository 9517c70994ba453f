"""Hold a table, and the file it is in, against what its consumer demands."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ranktables.findings import (
    MINDIE,
    MOTOR,
    Finding,
    Level,
    RankTableError,
    errors,
    listed,
)
from ranktables.rules import RULES, Chip, Consumer, Subject
from ranktables.table import RankTable


def check(
    table: RankTable, consumer: Consumer = Consumer.HCCL, chip: Chip | None = None
) -> list[Finding]:
    """Everything about the table that `consumer` would refuse or stumble over.

    Rules that depend on the chip's generation are left out where `chip` is not told.
    """
    subject = Subject(table, chip)
    return [
        Finding(rule.code, place, saw, rule.right, rule.source, level)
        for rule in RULES
        if (level := rule.levels.get(consumer))
        for place, saw in rule.find(subject)
    ]


def check_file(path: str | Path, consumer: Consumer, uid: int | None = None) -> list[Finding]:
    """What MindIE and Motor would refuse about the file itself.

    `uid` is the user that the engine runs as (None: the one who asks).
    """
    if consumer is Consumer.HCCL:
        return []
    source = MINDIE if consumer is Consumer.MINDIE else MOTOR
    return [
        Finding(code, str(path), saw, right, source, Level.ERROR)
        for code, saw, right in _file_faults(
            Path(path), consumer, os.geteuid() if uid is None else uid
        )
    ]


def require(table: RankTable, consumer: Consumer, chip: Chip | None, why: str) -> RankTable:
    """Return the table if `consumer` would take it.

    Raises:
        RankTableError: it would not; the error holds the findings.
    """
    if faults := errors(check(table, consumer, chip)):
        raise RankTableError(
            listed((f"{fault.place}: {fault.saw}" for fault in faults), most=3),
            why,
            f"right: {faults[0].right}",
            faults,
        )
    return table


def _file_faults(path: Path, consumer: Consumer, uid: int) -> Iterator[tuple[str, str, str]]:
    try:
        status = path.lstat()
    except OSError as error:
        yield "file.missing", f"it cannot be found: {error.strerror}", "the path of the table"
        return
    if stat.S_ISLNK(status.st_mode) and consumer is Consumer.MINDIE:
        yield "file.link", "a symbolic link", "the file itself: MindIE refuses links"
    try:
        status = path.stat()
    except OSError:
        yield "file.missing", "a link to nothing", "the path of the table"
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~0o640:
        yield "file.mode", f"mode {mode:o}", "mode 640 or less: chmod 640"
    if status.st_uid != uid and consumer is Consumer.MINDIE:
        yield "file.owner", f"owner {status.st_uid}", f"owner {uid}, whom the engine runs as: chown"
