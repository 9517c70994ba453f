"""Device masks and the three numbers of a device, one function for each direction.

    physical   N of /dev/davinciN: what hccn_tool, /etc/hccn.conf and container runtimes count in.
               A container keeps the host's numbers, whatever part of the devices it was given.
    logical    position among the devices that this machine or container has, from 0 in ascending
               physical order: what ASCEND_RT_VISIBLE_DEVICES and Ray count in.
    index      position in the mask, from 0: what a process gives to set_device().

Using one for another is the commonest device fault in the field:
https://github.com/verl-project/verl/pull/7507 (logical used as index),
https://github.com/vllm-project/vllm-ascend/issues/13399 (physical used as logical),
https://github.com/vllm-project/vllm-ascend/issues/167 (masked to one device, then indexed by it).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cluster.errors import ConfigError

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Mask:
    """What CANN takes from a mask: logical ids, and the tokens it leaves out with the reason."""

    ids: tuple[int, ...]
    ignored: tuple[str, ...] = ()
    why: str = ""


def read_mask(value: str | None, count: int) -> Mask:
    """Read the value of ASCEND_RT_VISIBLE_DEVICES as CANN does on a machine with `count` devices.

    CANN wants decimal ids below `count`, ascending, separated by commas without blanks. At the
    first token that breaks a rule it stops: that token and all after it are ignored, silently.
    None (unset) means all devices, an empty value none.
    """
    if value is None:
        return Mask(tuple(range(count)))
    tokens = value.split(",")
    ids: list[int] = []
    for position, token in enumerate(tokens):
        if why := _fault(token, ids, count):
            return Mask(tuple(ids), tuple(tokens[position:]), why)
        ids.append(int(token))
    return Mask(tuple(ids))


def write_mask(ids: Iterable[int]) -> str:
    """The mask that makes exactly these logical ids visible, in the one order that CANN takes.

    Raises:
        ConfigError: an id is negative or stands there twice.
    """
    ordered = sorted(ids)
    if (ordered and ordered[0] < 0) or len(set(ordered)) < len(ordered):
        raise ConfigError(
            f"device ids {', '.join(map(str, ordered))}",
            "a device mask holds each id once, from 0 up",
        )
    return ",".join(map(str, ordered))


@dataclass(frozen=True)
class Numbering:
    """The devices of a machine or container, and those of them that a process may use.

    `physical` are the ids present, ascending; `visible` the logical ids of the mask, ascending.
    Every method raises ConfigError for a device that is not there.
    """

    physical: tuple[int, ...]
    visible: tuple[int, ...]

    @classmethod
    def of(cls, physical: Iterable[int], mask: str | None) -> Numbering:
        """Number the devices with these physical ids for a process with this mask."""
        present = tuple(sorted(physical))
        return cls(present, read_mask(mask, len(present)).ids)

    def physical_to_logical(self, physical: int) -> int:
        return _position(self.physical, physical, "physical", "this machine has")

    def logical_to_physical(self, logical: int) -> int:
        return _at(self.physical, logical, "logical", "this machine has")

    def logical_to_index(self, logical: int) -> int:
        return _position(self.visible, logical, "logical", f"{VISIBLE} shows")

    def index_to_logical(self, index: int) -> int:
        return _at(self.visible, index, "index", f"{VISIBLE} shows")

    def physical_to_index(self, physical: int) -> int:
        return self.logical_to_index(self.physical_to_logical(physical))

    def index_to_physical(self, index: int) -> int:
        return self.logical_to_physical(self.index_to_logical(index))


def _fault(token: str, before: list[int], count: int) -> str:
    if not (token.isascii() and token.isdigit()):
        return f'"{token}" is not a decimal number without blanks'
    if int(token) >= count:
        return f"{token} is not below {count}, the number of devices here"
    if before and int(token) <= before[-1]:
        return f"{token} comes after {before[-1]}: ids have to ascend"
    return ""


def _position(ids: tuple[int, ...], wanted: int, kind: str, where: str) -> int:
    if wanted not in ids:
        raise ConfigError(f"{kind} device id {wanted}", f"{where} {_listed(ids)}")
    return ids.index(wanted)


def _at(ids: tuple[int, ...], position: int, kind: str, where: str) -> int:
    if not 0 <= position < len(ids):
        raise ConfigError(
            f"{kind} device id {position}", f"{where} {len(ids)} devices: {_listed(ids)}"
        )
    return ids[position]


def _listed(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids)) or "none"
