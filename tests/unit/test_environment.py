"""Every variable that our code names stands in the table, and nothing stands there for nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.environment import VARIABLES, engine_value

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("cluster", "serve_apps", "ranktables")
    for path in (ROOT / folder).rglob("*.py")
    if path.name not in ("environment.py", "serve_settings.py")
]
NAME = re.compile(
    r"[\"']((?:RAYSCEND|VLLM|HF|MS|XDG|OMP|SPT|TORCHINDUCTOR|DO_NOT|ASCEND|HCCL)_[A-Z_]+)[\"']"
)


def named() -> set[str]:
    return {name for path in SOURCES for name in NAME.findall(path.read_text("utf-8"))}


def test_every_variable_in_the_code_stands_in_the_table() -> None:
    assert named() - set(VARIABLES) == set()


def test_the_table_holds_nothing_that_the_code_does_not_use() -> None:
    assert set(VARIABLES) - named() == set()


def test_what_the_user_sets_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_value("VLLM_CPU_KVCACHE_SPACE") == "1"
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    assert engine_value("VLLM_CPU_KVCACHE_SPACE") == "4"
