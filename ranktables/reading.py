"""Read any layout of a rank table; what is odd but readable becomes a finding."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ranktables.findings import HCCL_A2, HCCL_TOOLS, Finding, Level, RankTableError, listed
from ranktables.json_text import Object, load
from ranktables.table import (
    CONTROLLERS,
    COORDINATORS,
    UNKNOWN,
    Device,
    Group,
    RankTable,
    Server,
    SuperPod,
)

# Where the Kubernetes operators put the table inside a container.
OPERATOR_FILE = Path("/user/serverid/devindex/config/hccl.json")

_DEVICE = frozenset(("device_id", "rank_id", "device_ip", "super_device_id"))
_SERVER = frozenset(("server_id", "device", "container_ip", "server_ip"))
_GROUP = frozenset(("server_list", "super_pod_list", "server_count", "group_id"))
_TABLE = frozenset(("version", "status", "server_group_list"))
_MOST_DIGITS = 10  # HCCL's ids are unsigned 32-bit numbers


def read(path: str | Path) -> tuple[RankTable, list[Finding]]:
    """Read the table in the file `path`, with what is wrong about how it is written.

    What the table says is judged by `check`, the file's owner and mode by `check_file`.

    Raises:
        RankTableError: the file cannot be read, or holds no rank table.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise RankTableError(str(path), f"it cannot be read: {error.strerror}") from None
    try:
        return parse(content)
    except RankTableError as error:
        raise RankTableError(f"{path}: {error.saw}", error.why, error.remedy) from None


def parse(content: str | bytes) -> tuple[RankTable, list[Finding]]:
    """Like `read`, for a table that is at hand already."""
    findings: list[Finding] = []
    raw = load(content, findings)
    if "group_list" in raw:
        raise RankTableError(
            "it has a group_list",
            "that is HCCL's old template 2, which only old consumers read",
            "write the table anew with a server_list (template 1)",
        )
    if "server_list" not in raw and "server_group_list" not in raw and raw.get("status") is None:
        raise RankTableError(
            f"it has neither server_list nor server_group_list (fields: {listed(raw) or 'none'})",
            "that is no rank table",
        )
    return _Reader(findings).table(raw), findings


def wait_until_complete(
    path: str | Path = OPERATOR_FILE,
    limit_s: float = 600.0,
    poll_s: float = 1.0,
    tell: Callable[[str], None] = lambda state: None,
) -> tuple[RankTable, list[Finding]]:
    """Read the table that a Kubernetes operator writes, once its status is "completed".

    Until then the file may be absent, empty, half written, or say "initializing". `tell` is called
    with each new state.

    Raises:
        RankTableError: it was not completed within `limit_s` seconds.
    """
    end, state = time.monotonic() + limit_s, ""
    while True:
        try:
            table, findings = read(path)
            if table.status == "completed":
                return table, findings
            now = f'{path}: status is "{table.status}"'
        except RankTableError as error:
            now = str(error)
        if now != state:
            state = now
            tell(state)
        if time.monotonic() >= end:
            raise RankTableError(
                state,
                f'status was not "completed" within {limit_s:g} s',
                "look at the operator's log and at the pods of the job: the operator waits until "
                "every pod has its devices",
            )
        time.sleep(min(poll_s, max(0.0, end - time.monotonic())))


class _Reader:
    """Turns the JSON objects into a table, noting what is not spelled as consumers read it."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings
        self._not_strings: dict[str, list[str]] = {}

    def table(self, raw: Object) -> RankTable:
        if "server_group_list" in raw:
            known, places = _TABLE, self._objects(raw, "server_group_list", "")
            groups = tuple(self._group(item, f"{place}.") for place, item in places)
        else:
            known, groups = _TABLE | _GROUP, (self._group(raw, ""),)
        version, status = self._text(raw, "version", ""), self._text(raw, "status", "")
        self._report_numbers()
        return RankTable(version, groups, status, _others(raw, known))

    def _group(self, raw: Object, at: str) -> Group:
        # The plain table's own fields stay with the table.
        group_id = self._text(raw, "group_id", at) if at else None
        count = self._number(raw, "server_count", at) if "server_count" in raw else None
        bare = group_id in (COORDINATORS, CONTROLLERS)
        return Group(
            tuple(
                self._server(item, f"{place}.", bare)
                for place, item in self._objects(raw, "server_list", at)
            ),
            tuple(
                SuperPod(
                    self._text(pod, "super_pod_id", f"{place}."),
                    tuple(
                        self._text(server, "server_id", f"{inner}.")
                        for inner, server in self._objects(pod, "server_list", f"{place}.")
                    ),
                )
                for place, pod in self._objects(raw, "super_pod_list", at)
            ),
            count,
            group_id,
            _others(raw, _GROUP) if at else {},
        )

    def _server(self, raw: Object, at: str, bare: bool) -> Server:
        ip = "server_ip" if "server_ip" in raw else "container_ip"
        devices = () if bare else self._objects(raw, "device", at)
        return Server(
            self._text(raw, "server_id", at),
            tuple(self._device(item, f"{place}.") for place, item in devices),
            self._text(raw, ip, at),
            _others(raw, _SERVER),
        )

    def _device(self, raw: Object, at: str) -> Device:
        return Device(
            self._number(raw, "device_id", at),
            self._number(raw, "rank_id", at),
            self._text(raw, "device_ip", at),
            self._number(raw, "super_device_id", at) if "super_device_id" in raw else None,
            _others(raw, _DEVICE),
        )

    def _objects(self, raw: Object, key: str, at: str) -> list[tuple[str, Object]]:
        value = raw.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self._invalid(f"{at}{key}", f"{key} is a {type(value).__name__}", "a list of objects")
            return []
        found: list[tuple[str, Object]] = []
        for index, item in enumerate(value):
            place = f"{at}{key}[{index}]"
            if isinstance(item, dict):
                found.append((place, item))
            else:
                self._invalid(place, f"a {type(item).__name__}", "an object")
        return found

    def _text(self, raw: Object, key: str, at: str) -> str:
        value = raw.get(key, "")
        if isinstance(value, str):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self._not_strings.setdefault(key, []).append(f"{at}{key}")
            return str(value)
        self._invalid(f"{at}{key}", f"{key} is {_short(value)}", "a string")
        return ""

    def _number(self, raw: Object, key: str, at: str) -> int:
        value = raw.get(key)
        if type(value) is int and value >= 0:
            self._not_strings.setdefault(key, []).append(f"{at}{key}")
            return value
        if (
            isinstance(value, str)
            and value.isascii()
            and value.isdecimal()
            and len(value) <= _MOST_DIGITS
        ):
            return int(value)
        if value is None:
            saw = f"no {key} (fields: {listed(raw) or 'none'})"
        else:
            saw = f"{key} is {_short(value)}"
        self._invalid(f"{at}{key}", saw, 'a whole number from 0, as a string, such as "0"')
        return UNKNOWN

    def _invalid(self, place: str, saw: str, right: str) -> None:
        self._findings.append(
            Finding("field.invalid", place, saw, right, HCCL_A2, Level.ERROR),
        )

    def _report_numbers(self) -> None:
        """One finding for each field: a tool that writes one number writes them all."""
        for key, places in self._not_strings.items():
            self._findings.append(
                Finding(
                    "field.not_string",
                    places[0],
                    f"{key} is a JSON number, in {len(places)} place{'s' * (len(places) > 1)}",
                    "a string: HCCL and MindIE read nothing else (merge_hccl.py writes numbers); "
                    "writing the table anew mends it",
                    HCCL_TOOLS,
                    Level.ERROR,
                )
            )


def _others(raw: Object, known: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in known}


def _short(value: Any, most: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else text[:most] + "…"
