"""Prometheus' text format: one text out of those of many engines.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format: all samples of a
family stand together, under at most one HELP and one TYPE. Lines are moved, not parsed: an
engine's text is about 100 kB, and the event loop that reads it relays tokens meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_SUFFIX = re.compile(r"_(?:bucket|sum|count|total|created|info)$")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass
class _Family:
    comments: dict[str, str] = field(default_factory=dict)  # the first HELP and the first TYPE
    samples: list[str] = field(default_factory=list)


class Exposition:
    """Collects texts; gives them out as one."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(self, text: str, labels: Mapping[str, str]) -> None:
        """Take a text's samples, each with `labels` added.

        A label of the same name in the text becomes `exported_…`, as where Prometheus itself adds
        labels. What is no sample, HELP or TYPE is left out.
        """
        added = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
        clash = re.compile(rf'(^|,)({"|".join(labels)})="')
        name = ""
        family = _Family()
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                _, kind, name, *_ = line.split(" ", 3)
                family = self._families.setdefault(name, _Family())
                family.comments.setdefault(kind, line)
            elif match := _NAME.match(line):
                if match[0] != name and _SUFFIX.sub("", match[0]) != name:
                    name = match[0]
                    family = self._families.setdefault(name, _Family())
                rest = line[match.end() :]
                if rest.startswith("{"):
                    rest = clash.sub(r'\1exported_\2="', rest[1:])
                    # Braces may stand inside of values, but none behind the labels.
                    joint = "" if rest.startswith("}") else ","
                    family.samples.append(f"{match[0]}{{{added}{joint}{rest}")
                else:
                    family.samples.append(f"{match[0]}{{{added}}}{rest}")

    def text(self) -> str:
        """Everything taken so far."""
        lines: list[str] = []
        for family in self._families.values():
            if family.samples:
                lines += family.comments.values()
                lines += family.samples
        return "\n".join([*lines, ""])
