from __future__ import annotations

import os
from pathlib import Path

import pytest

from ranktables import Consumer, check_file
from tests.unit.ranktable_samples import SAMPLES


def _file(folder: Path, mode: int = 0o640) -> Path:
    path = folder / "table.json"
    path.write_bytes((SAMPLES / "mindie.json").read_bytes())
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("mode", "consumer", "codes"),
    [
        (0o640, Consumer.MINDIE, []),
        (0o400, Consumer.MINDIE, []),
        (0o644, Consumer.MINDIE, ["file.mode"]),
        (0o660, Consumer.MINDIE, ["file.mode"]),
        (0o750, Consumer.MOTOR, ["file.mode"]),
        (0o644, Consumer.HCCL, []),
    ],
)
def test_a_file_that_others_can_read_or_write_is_told(
    tmp_path: Path, mode: int, consumer: Consumer, codes: list[str]
) -> None:
    findings = check_file(_file(tmp_path, mode), consumer)
    assert [finding.code for finding in findings] == codes
    assert all(f"{mode:o}" in finding.saw for finding in findings)


def test_a_link_and_a_foreign_owner_are_told_for_mindie(tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(_file(tmp_path))
    findings = check_file(link, Consumer.MINDIE, uid=os.geteuid() + 1)
    assert [finding.code for finding in findings] == ["file.link", "file.owner"]
    assert check_file(link, Consumer.MOTOR, uid=os.geteuid() + 1) == []


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert [f.code for f in check_file(tmp_path / "no.json", Consumer.MINDIE)] == ["file.missing"]
