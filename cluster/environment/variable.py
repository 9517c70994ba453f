"""What is known of one environment variable, and whether a value can be one of its."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from cluster.devices.masks import read_mask
from cluster.specifiers import Stack, applies


class Scope(StrEnum):
    """Who reads a variable, or for whom we set it, and where it has to stand.

    Ray does not copy an engine's variables to other nodes (vLLM copies its own only), so SHARED
    and PER_NODE ones have to be in the environment of every node's Ray before it starts.
    """

    USER = "read by Rayscend; yours to set"
    ENGINE = "set for an engine unless you set it"
    INTERNAL = "set by Rayscend for its own processes"
    SHARED = "an engine's; the same on every node"
    PER_NODE = "an engine's; each node has its own value"
    FORBIDDEN = "an engine's own; must not be set from outside"


@dataclass(frozen=True)
class Variable:
    """One variable.

    `type` is a kind of `KINDS`, choices `a|b` in any case, or a range `seconds 120-7200`.
    `default` None means: unset, or computed as `meaning` says. `versions` are requirements on the
    stack, `vllm-mindspore<0.4; mindie` (any of them), or "all".
    """

    name: str
    type: str
    default: str | None
    scope: Scope
    meaning: str
    versions: str = "all"

    def applies(self, stack: Stack) -> bool:
        """Whether anything in the stack reads it."""
        return self.versions == "all" or applies(self.versions, stack)

    def takes(self, value: str) -> bool:
        """Whether `value` is of this variable's type."""
        if "|" in self.type:
            return value.casefold() in self.type.casefold().split("|")
        if span := RANGE.fullmatch(self.type):
            return _is_number(value) and int(span[1]) <= int(value) <= int(span[2])
        return KINDS[self.type](value)


RANGE = re.compile(r"[a-zA-Z]+ (\d+)-(\d+)")


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit()


def _is_address(value: str) -> bool:
    try:
        return bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _like(pattern: str) -> Callable[[str], bool]:
    return lambda value: re.fullmatch(pattern, value) is not None


_OCTET = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}"

KINDS: Mapping[str, Callable[[str], bool]] = {
    "text": bool,
    "folder": bool,
    "file": bool,
    "address": _is_address,
    "ipv4": _like(_IPV4),
    # LCAL connects ranks of one host only and refuses any other address.
    "loopback:port": _like(r"127(\.\d+){3}:\d+"),
    "count": _like(r"[1-9]\d*"),
    "number": _like(r"-?\d+(\.\d+)?"),
    "seconds": _like(r"\d+"),
    "MB": _like(r"[1-9]\d*"),
    "GB": _like(r"[1-9]\d*"),
    "GiB": _like(r"\d+(\.\d+)?"),
    "hex": _like(r"[0-9a-f]+"),
    "cores": bool,
    "interfaces": _like(r"[\^=]{0,2}[\w.@:-]+(,[\w.@:-]+)*"),
    "device ids": lambda value: not read_mask(value, 1 << 16).ignored,
    "numbers": _like(r"\d+(,\d+)*"),
    "port range": _like(r"auto|\d+(-\d+)?(,\d+(-\d+)?)*"),
}
