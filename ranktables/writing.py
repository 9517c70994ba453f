"""Write a rank table: the same bytes for the same table, one line for each device."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ranktables.findings import RankTableError
from ranktables.table import UNKNOWN, Device, Group, RankTable, Server

MODE = 0o640
"""What MindIE and Motor allow at most."""


def render(table: RankTable) -> str:
    """The table as JSON, numbers as strings. `server_count` is counted, not copied.

    Raises:
        RankTableError: an id is unknown, because the file that the table was read from lacks it.
    """
    if table.is_global:
        groups = [_group(group) for group in table.groups]
        fields = [("server_group_list", _list(groups, 1))]
    else:
        fields = [(key, value) for group in table.groups for key, value in _fields(group, 1)]
    head = [("version", _json(table.version)), ("status", _json(table.status))]
    return _object([*head, *_extra(table.extra), *fields], 0) + "\n"


def write(table: RankTable, path: str | Path) -> None:
    """Put the table into `path` at once and whole, with mode 640.

    A reader sees the old file or the new one. A link at `path` is replaced by a file, because
    MindIE refuses links.

    Raises:
        RankTableError: the table has unknown ids, or the file cannot be written.
    """
    content, target = render(table), Path(path)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), MODE)
                os.fsync(file.fileno())
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RankTableError(str(path), f"it cannot be written: {error.strerror}") from None


def _fields(group: Group, depth: int) -> list[tuple[str, str]]:
    ip = "container_ip" if group.group_id is None else "server_ip"
    servers = _list([_server(server, ip, depth + 1) for server in group.servers], depth)
    fields = [("server_count", _json(str(len(group.servers)))), ("server_list", servers)]
    if group.super_pods:
        pods = [
            _json(
                {
                    "super_pod_id": pod.super_pod_id,
                    "server_list": [{"server_id": server_id} for server_id in pod.server_ids],
                }
            )
            for pod in group.super_pods
        ]
        fields.append(("super_pod_list", _list(pods, depth)))
    return fields


def _group(group: Group) -> str:
    head = [("group_id", _json(group.group_id)), *_extra(group.extra)]
    return _object([*head, *_fields(group, 3)], 2)


def _server(server: Server, ip: str, depth: int) -> str:
    fields = []
    if server.server_id:
        fields.append(("server_id", _json(server.server_id)))
    if server.container_ip:
        fields.append((ip, _json(server.container_ip)))
    fields += _extra(server.extra)
    if server.devices:
        fields.append(("device", _list([_device(device) for device in server.devices], depth + 1)))
    return _object(fields, depth)


def _device(device: Device) -> str:
    if UNKNOWN in (device.device_id, device.rank, device.super_device_id):
        raise RankTableError(
            f"device {device.device_ip or device.device_id} lacks an id",
            "a table with unknown ids cannot be written",
            "mend the findings of the file that it was read from",
        )
    fields = {"device_id": str(device.device_id)}
    if device.device_ip:
        fields["device_ip"] = device.device_ip
    if device.super_device_id is not None:
        fields["super_device_id"] = str(device.super_device_id)
    return _json({**fields, "rank_id": str(device.rank), **device.extra})


def _extra(extra: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key, _json(value)) for key, value in extra.items()]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(fields: Iterable[tuple[str, str]], depth: int) -> str:
    """An object of which each field has its line; `depth` is that of the closing brace."""
    inner, outer = "  " * (depth + 1), "  " * depth
    lines = ",\n".join(f"{inner}{_json(key)}: {value}" for key, value in fields)
    return f"{{\n{lines}\n{outer}}}"


def _list(items: list[str], depth: int) -> str:
    if not items:
        return "[]"
    inner, outer = "  " * (depth + 1), "  " * depth
    return "[\n" + ",\n".join(inner + item for item in items) + f"\n{outer}]"
