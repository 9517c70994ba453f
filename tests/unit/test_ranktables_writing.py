from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from ranktables import (
    Consumer,
    Node,
    RankTableError,
    build,
    check,
    check_file,
    parse,
    read,
    render,
    write,
)
from tests.unit.ranktable_samples import SAMPLES, WITHOUT, sample

_NAMES = [path.stem for path in SAMPLES.glob("*.json") if "initializing" not in path.stem]


def _large(devices: int) -> list[Node]:
    return [
        Node(
            f"10.0.{server >> 8}.{server & 255}",
            {device: f"11.{server >> 8}.{server & 255}.{device + 1}" for device in range(8)},
        )
        for server in range(devices // 8)
    ]


@pytest.mark.parametrize("name", _NAMES)
def test_a_table_that_is_written_and_read_is_the_same_table(name: str) -> None:
    table, _ = read(SAMPLES / f"{name}.json")
    again, findings = parse(render(table))
    assert (again, findings) == (table, [])


@pytest.mark.parametrize("name", sorted(set(_NAMES) - {"hccl_v1_0_commented", "merge_hccl"}))
def test_nothing_that_a_file_says_is_lost(name: str) -> None:
    original = json.loads((SAMPLES / f"{name}.json").read_text())
    assert json.loads(render(sample(name))) == original


def test_every_device_has_its_own_line() -> None:
    lines = render(sample("mindie")).splitlines()
    assert [line.strip() for line in lines if "device_id" in line] == [
        '{"device_id": "0", "device_ip": "192.168.1.10", "rank_id": "0"},',
        '{"device_id": "1", "device_ip": "192.168.1.11", "rank_id": "1"}',
        '{"device_id": "0", "device_ip": "192.168.1.20", "rank_id": "2"},',
        '{"device_id": "1", "device_ip": "192.168.1.21", "rank_id": "3"}',
    ]


def test_the_same_nodes_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        nodes = [Node("10.0.0.1", {1: "192.168.1.2", 0: "192.168.1.1"})]
        write(build(nodes), tmp_path / name)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_a_written_file_is_one_that_mindie_takes_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    before = os.umask(0o077)
    try:
        write(sample("mindie"), path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert check_file(path, Consumer.MINDIE) == []


def test_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    write(sample("mindie"), link)
    assert not link.is_symlink()
    assert target.read_text() == "old"


def test_a_reader_never_sees_half_a_table(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    tables = [build(_large(400)), build(_large(80))]
    write(tables[0], path)
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            for table in tables:
                write(table, path)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        counts = {read(path)[0].device_count for _ in range(100)}
    finally:
        stop.set()
        writer.join()
    assert counts <= {400, 80}


def test_a_table_that_cannot_be_written_leaves_the_old_file_and_nothing_else(
    tmp_path: Path,
) -> None:
    path = tmp_path / "table.json"
    write(sample("mindie"), path)
    before = path.read_bytes()
    lacking = sample("mindie", server_list__0__device__0__rank_id=WITHOUT)
    with pytest.raises(RankTableError, match="lacks an id"):
        write(lacking, path)
    with pytest.raises(RankTableError, match="cannot be written"):
        write(sample("mindie"), tmp_path / "absent" / "table.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RankTableError, match="cannot be written"):
        write(sample("mindie"), tmp_path / "folder")
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "table.json"]


def test_ten_thousand_devices_take_about_a_second_at_most(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write(build(_large(10_000)), path)
    start = time.process_time()
    table, findings = read(path)
    findings += check(table, Consumer.HCCL)
    write(table, path)
    seconds = time.process_time() - start
    assert (table.device_count, findings) == (10_000, [])
    assert seconds < 3  # 0.3 to 0.4 s on an idle machine: docs/measurements.md
