from __future__ import annotations

import codecs
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ranktables import (
    Consumer,
    Device,
    Level,
    RankTable,
    RankTableError,
    Server,
    SuperPod,
    check,
    parse,
    read,
    render,
    wait_until_complete,
)
from tests.unit.ranktable_samples import SAMPLES, WITHOUT, edited

_STRICT = {
    "hccl_v1_0": Consumer.HCCL,
    "hccl_v1_2": Consumer.HCCL,
    "hccl_tools_node_0": Consumer.HCCL,
    "hccl_tools_node_1": Consumer.HCCL,
    "operator_completed": Consumer.MINDIE,
    "mindie": Consumer.MINDIE,
    "global_v1_0": Consumer.MOTOR,
    "global_v1_2": Consumer.MOTOR,
}


def _read(sample: str) -> RankTable:
    return read(SAMPLES / f"{sample}.json")[0]


@pytest.mark.parametrize(("sample", "consumer"), _STRICT.items())
def test_a_good_table_of_each_layout_has_no_findings(sample: str, consumer: Consumer) -> None:
    table, findings = read(SAMPLES / f"{sample}.json")
    assert findings == []
    assert check(table, consumer) == []


def test_the_readme_names_every_sample() -> None:
    readme = (SAMPLES / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in SAMPLES.glob("*.json") if f"`{path.name}`" not in readme] == []


def test_a_table_holds_what_the_file_says() -> None:
    table = _read("hccl_v1_2")
    assert (table.version, table.status, table.device_count) == ("1.2", "completed", 8)
    server = table.servers[1]
    assert (server.server_id, server.extra) == ("node_1", {"host_ip": "172.16.0.101"})
    device = server.devices[0]
    assert (device.device_id, device.rank, device.super_device_id) == (0, 2, 16)
    assert device.extra["backup_device_port"] == "16667"
    assert table.groups[0].super_pods[1] == SuperPod("1", ("node_2", "node_3"))


def test_pods_have_their_address_in_container_ip_in_every_layout() -> None:
    assert [server.container_ip for server in _read("mindie").servers] == [
        "10.244.0.1",
        "10.244.0.2",
    ]
    table = _read("global_v1_0")
    assert [server.container_ip for server in table.servers] == ["10.0.1.1", "10.0.1.2"]
    coordinators = table.groups[0]
    assert (coordinators.group_id, coordinators.servers) == (
        "0",
        (Server("", container_ip="10.0.0.9"),),
    )


def test_integer_ids_of_merge_hccl_are_read_and_told_once() -> None:
    table, findings = read(SAMPLES / "merge_hccl.json")
    ranks = [device.rank for server in table.servers for device in server.devices]
    assert ranks == list(range(8))
    assert [(f.code, f.place, f.level) for f in findings] == [
        ("field.not_string", "server_list[0].device[0].rank_id", Level.ERROR)
    ]
    assert "in 8 places" in findings[0].saw
    assert parse(render(table))[1] == []


def test_comments_are_read_and_told_with_their_place() -> None:
    table, findings = read(SAMPLES / "hccl_v1_0_commented.json")
    assert table.servers[0].server_id == "node//0"
    assert table.servers[0].devices == (
        Device(0, 0, "192.168.1.8"),
        Device(1, 1, "192.168.1.9"),
    )
    assert [(f.code, f.place) for f in findings] == [("json.comments", "line 2, column 30")]


@pytest.mark.parametrize(
    ("encoded", "code", "level"),
    [
        (lambda text: codecs.BOM_UTF8 + text.encode(), "json.bom", Level.WARNING),
        (lambda text: text.encode("utf-16"), "json.encoding", Level.ERROR),
        (lambda text: text.encode("utf-16-le"), "json.encoding", Level.ERROR),
    ],
    ids=["byte order mark", "utf-16", "utf-16 without mark"],
)
def test_a_table_from_an_editor_on_windows_is_read_and_told(
    encoded: Any, code: str, level: Level
) -> None:
    table, findings = parse(encoded(edited("hccl_v1_0", {})))
    assert table == _read("hccl_v1_0")
    assert [(f.code, f.level) for f in findings] == [(code, level)]


@pytest.mark.parametrize(
    ("edits", "place", "saw"),
    [
        ({"server_list.1.device.0.rank_id": "x"}, "server_list[1].device[0].rank_id", '"x"'),
        ({"server_list.1.device.0.rank_id": "-1"}, "server_list[1].device[0].rank_id", '"-1"'),
        ({"server_list.1.device.0.rank_id": -1}, "server_list[1].device[0].rank_id", "-1"),
        ({"server_list.1.device.0.rank_id": True}, "server_list[1].device[0].rank_id", "true"),
        ({"server_list.1.device.0.rank_id": "9" * 5000}, "server_list[1].device[0].rank_id", "…"),
        ({"server_list.0.device.1.device_id": WITHOUT}, "server_list[0].device[1].device_id", "no"),
        ({"server_list.0.device.1.device_ip": None}, "server_list[0].device[1].device_ip", "null"),
        ({"server_list.0.device.1": "npu"}, "server_list[0].device[1]", "a str"),
        ({"server_list.0.device": {}}, "server_list[0].device", "a dict"),
        ({"server_list": "x"}, "server_list", "a str"),
        ({"server_count": "two"}, "server_count", '"two"'),
    ],
)
def test_a_field_that_no_consumer_reads_is_told_and_the_rest_is_read(
    edits: dict[str, Any], place: str, saw: str
) -> None:
    table, findings = parse(edited("hccl_v1_0", edits))
    assert [(f.code, f.place) for f in findings] == [("field.invalid", place)]
    assert saw in findings[0].saw
    assert table.version == "1.0"


def test_a_missing_field_is_told_with_the_fields_that_are_there() -> None:
    edits = {"server_list.0.device.0.rank_id": WITHOUT, "server_list.0.device.0.rankid": "0"}
    _, findings = parse(edited("mindie", edits))
    assert findings[0].saw == "no rank_id (fields: device_id, device_ip, rankid)"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"version": "1.0",\n "server_list": [}', "line 2, column 18"),
        ('{"version": "1.0" // here\n "server_list": []}', "line 2, column 2"),
        ("", "line 1, column 1"),
        ("[1]", "a list"),
        ('{"a": 1}', "neither server_list nor server_group_list (fields: a)"),
        ('{"status": "completed", "group_list": []}', "template 2"),
        ("[" * 100_000, "nested too deeply"),
        (b'{"version": "\xff\xfe"}', "byte 13 is not utf-8"),
    ],
)
def test_what_is_no_rank_table_is_one_clear_error(text: str | bytes, told: str) -> None:
    with pytest.raises(RankTableError) as refused:
        parse(text)
    assert told in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RankTableError, match=r"absent\.json.*No such file"):
        read(tmp_path / "absent.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(RankTableError, match=r"bad\.json: line 1, column 2"):
        read(tmp_path / "bad.json")


def test_the_operators_table_is_waited_for_through_all_its_states(tmp_path: Path) -> None:
    path, states = tmp_path / "hccl.json", list[str]()
    completed = (SAMPLES / "operator_completed.json").read_text()
    contents = [completed[:100], (SAMPLES / "operator_initializing.json").read_text(), completed]
    seen = threading.Semaphore(0)

    def tell(state: str) -> None:
        states.append(state)
        seen.release()

    def operator() -> None:
        for content in contents:
            seen.acquire()
            temporary = path.with_suffix(".new")
            temporary.write_text(content)
            temporary.replace(path)

    writer = threading.Thread(target=operator)
    writer.start()
    table, _ = wait_until_complete(path, limit_s=30, poll_s=0.01, tell=tell)
    writer.join()
    assert table.device_count == 4
    told = ["No such file", "not JSON", 'status is "initializing"']
    assert [word for word, state in zip(told, states, strict=True) if word not in state] == []


def test_waiting_for_the_operator_ends_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "hccl.json"
    path.write_text((SAMPLES / "operator_initializing.json").read_text())
    with pytest.raises(RankTableError, match=r'"initializing".*within 0\.05 s.*operator'):
        wait_until_complete(path, limit_s=0.05, poll_s=0.01)


def test_a_table_without_groups_can_be_checked() -> None:
    table, _ = parse(json.dumps({"server_group_list": [], "version": "1.0", "status": "completed"}))
    assert table.is_global
    assert [f.code for f in check(table, Consumer.HCCL)] == ["layout.global"]
    assert "motor.group_missing" in {f.code for f in check(table, Consumer.MOTOR)}


def test_the_package_imports_nothing_but_the_standard_library() -> None:
    program = (
        "import sys, ranktables\n"
        "ours = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names\n"
        "print(sorted(ours & {'ray', 'vllm', 'cluster', 'serve_apps', 'pydantic', 'numpy'}))"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert output.stdout == "[]\n"
