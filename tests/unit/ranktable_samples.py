"""The sample tables, copies of them with faults, and what a check must say of those."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ranktables
from ranktables import Chip, Consumer, Level, RankTable, check, parse

SAMPLES = Path(ranktables.__file__).parent / "samples"
WITHOUT: Any = object()


def edited(sample: str, edits: Mapping[str, Any]) -> str:
    """The sample's JSON with values set at dotted paths; WITHOUT removes what is there."""
    raw = json.loads((SAMPLES / f"{sample}.json").read_text(encoding="utf-8"))
    for path, value in edits.items():
        *parents, last = (int(key) if key.isdecimal() else key for key in path.split("."))
        holder = raw
        for key in parents:
            holder = holder[key]
        if value is WITHOUT:
            del holder[last]
        elif isinstance(holder, list) and last == len(holder):
            holder.append(value)
        else:
            holder[last] = value
    return json.dumps(raw)


def sample(name: str, **edits: Any) -> RankTable:
    """The table of a sample; in `edits`, dots of paths are written as double underscores."""
    table, _ = parse(edited(name, {key.replace("__", "."): value for key, value in edits.items()}))
    return table


def device(number: int, rank: int) -> dict[str, str]:
    address = f"11.0.{rank >> 8}.{rank & 255}"
    return {"device_id": str(number), "device_ip": address, "rank_id": str(rank)}


@dataclass
class Fault:
    """A sample with edits, and the places at which `code` is then found.

    Where `alone` is true, nothing else may be found.
    """

    code: str
    sample: str
    edits: dict[str, Any] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    saw: str = ""
    consumer: Consumer = Consumer.HCCL
    chip: Chip | None = None
    level: Level = Level.ERROR
    alone: bool = True

    def assert_found(self) -> None:
        table, _ = parse(edited(self.sample, self.edits))
        findings = check(table, self.consumer, self.chip)
        ours = [finding for finding in findings if finding.code == self.code]
        assert tuple(finding.place for finding in ours) == self.places
        assert {finding.level for finding in ours} == {self.level}
        assert self.saw in ours[0].saw
        assert ours[0].right
        assert ours[0].source.startswith("https://")
        if self.alone:
            assert findings == ours
