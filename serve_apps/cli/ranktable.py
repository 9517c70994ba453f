"""`rayscend ranktable`: check, build, convert and merge rank tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from cluster.devices.hccn import parse_conf
from cluster.errors import ConfigError
from cluster.preflight.host import of_rank_table
from ranktables import (
    Chip,
    Consumer,
    Node,
    RankTable,
    Variant,
    build,
    check,
    check_file,
    convert,
    merge,
    read,
    render,
    write,
)
from serve_apps.check import read_yaml
from serve_apps.cli.report import Report, reports

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _chosen(function: F) -> F:
    chips = click.Choice([chip.value for chip in Chip], case_sensitive=False)
    consumers = click.Choice([consumer.value for consumer in Consumer])
    function = click.option("--chip", type=chips, help="Generation of the NPUs.")(function)
    return click.option(
        "--for", "consumer", type=consumers, default="hccl", show_default=True, help="Who reads it."
    )(function)


_OUTPUT = click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Write here, mode 640; else to stdout."
)


@click.group(short_help="Check, build, convert and merge rank tables.")
def ranktable() -> None:
    """Check, build, convert and merge rank tables of HCCL, MindIE and Motor."""


@ranktable.command("check")
@click.argument("files", nargs=-1, required=True, type=_FILE)
@_chosen
@reports
def check_(files: Sequence[Path], consumer: str, chip: str | None) -> Report:
    """Tell everything about FILES that their reader would refuse."""
    reader, findings, lines, tables = Consumer(consumer), [], [], []
    for file in files:
        table, found = read(file)
        found += [*check(table, reader, _chip(chip)), *check_file(file, reader)]
        findings += [of_rank_table(file, one) for one in found]
        tables.append({"file": file, "servers": len(table.servers), "devices": table.device_count})
        state = "in order" if not found else f"{len(found)} findings"
        lines.append(
            f"{file}: version {table.version or 'not told'}, {len(table.servers)} servers,"
            f" {table.device_count} devices; {state} for {reader}"
        )
    return Report("\n".join(lines), {"tables": tables}, findings)


class _NodeEntry(BaseModel):
    """One entry of the file for `build`; the fields are those of `ranktables.Node`."""

    model_config = ConfigDict(extra="forbid")
    server_id: str
    device_ips: dict[int, str]
    container_ip: str = ""
    super_pod_id: str = ""
    super_device_ids: dict[int, int] = {}


@ranktable.command("build")
@click.argument("file", required=False, type=_FILE)
@click.option(
    "--node",
    "confs",
    multiple=True,
    metavar="ADDRESS=HCCN_CONF",
    help="A node and a copy of its /etc/hccn.conf, in the order of ranks; repeat it.",
)
@_chosen
@_OUTPUT
@reports
def build_(
    file: Path | None,
    confs: Sequence[str],
    consumer: str,
    chip: str | None,
    output: Path | None,
) -> Report:
    """Make a table of nodes, with cumulative ranks; nodes may differ in devices.

    FILE is YAML: a list of {server_id, device_ips: {0: 29.0.0.1, …}, container_ip, super_pod_id,
    super_device_ids}; the last three where they are needed.
    """
    if bool(file) == bool(confs):
        raise click.UsageError("give either FILE or --node")
    nodes = _nodes_of(file) if file else [_node_of(conf) for conf in confs]
    return _made(build(nodes, Consumer(consumer), _chip(chip)), output)


@ranktable.command("convert")
@click.argument("file", type=_FILE)
@click.option("--to", required=True, type=click.Choice([one.value for one in Variant]))
@click.option("--group", default="", help="Which instance of a global table.")
@click.option(
    "--container-ip", "ips", multiple=True, metavar="SERVER_ID=ADDRESS", help="Where it is missing."
)
@click.option("--coordinator", "coordinators", multiple=True, metavar="ADDRESS")
@click.option("--controller", "controllers", multiple=True, metavar="ADDRESS")
@_OUTPUT
@reports
def convert_(
    file: Path,
    to: str,
    group: str,
    ips: Sequence[str],
    coordinators: Sequence[str],
    controllers: Sequence[str],
    output: Path | None,
) -> Report:
    """Write the devices of FILE in another layout."""
    table, _ = read(file)
    addresses = dict(_pair(one, "--container-ip") for one in ips)
    made = convert(table, Variant(to), group, addresses, coordinators, controllers)
    return _made(made, output)


@ranktable.command("merge")
@click.argument("files", nargs=-1, required=True, type=_FILE)
@_chosen
@_OUTPUT
@reports
def merge_(files: Sequence[Path], consumer: str, chip: str | None, output: Path | None) -> Report:
    """Make one table of the tables of single nodes, ranks counted anew in the order of FILES."""
    tables = [read(file)[0] for file in files]
    return _made(merge(tables, Consumer(consumer), _chip(chip)), output)


def _made(table: RankTable, output: Path | None) -> Report:
    data = {"servers": len(table.servers), "devices": table.device_count, "file": output}
    if output is None:
        return Report(render(table).rstrip(), {**data, "table": render(table)})
    write(table, output)
    return Report(f"{output}: {len(table.servers)} servers, {table.device_count} devices", data)


def _chip(name: str | None) -> Chip | None:
    return Chip(name) if name else None


def _pair(word: str, option: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    if not name or not value:
        raise click.BadParameter(f'"{word}" has no "="', param_hint=option)
    return name, value


def _node_of(word: str) -> Node:
    address, conf = _pair(word, "--node")
    try:
        nics = parse_conf(Path(conf).read_text("utf-8"))
    except OSError as error:
        raise click.BadParameter(f"{conf}: {error.strerror}", param_hint="--node") from None
    if not nics:
        raise ConfigError(
            f"{conf} holds no address_N",
            "without addresses the NPUs of several nodes cannot meet",
            "set them with hccn_tool -i N -ip -s on that node",
        )
    ips = {number: nic.address or "" for number, nic in nics.items()}
    return Node(address, ips, container_ip=address)


def _nodes_of(file: Path) -> list[Node]:
    try:
        entries = TypeAdapter(list[_NodeEntry]).validate_python(read_yaml(file))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"{file}: {place}", first["msg"], "see rayscend ranktable build -h"
        ) from None
    return [Node(**entry.model_dump()) for entry in entries]
