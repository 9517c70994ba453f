"""The benchmark's own arithmetic, and its load generator against the simulated engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from scripts.benchmark import report
from scripts.benchmark.load import Load, run
from scripts.benchmark.measure import Result, Target, compare, percentiles, ratios
from tests.unit.simulated import Process, launched


@pytest.fixture(scope="module")
def engine() -> Iterator[Process]:
    with launched("--ttft=0.05", "--itl=0.005") as process:
        yield process


async def test_a_closed_loop_asks_for_exactly_what_was_said(engine: Process) -> None:
    outcome = await run(engine.url, "m", Load(requests=6, max_tokens=8, streams=3))
    assert [record.failure for record in outcome.records] == [""] * 6
    assert [record.tokens for record in outcome.records] == [8] * 6
    assert all(len(record.gaps) == 7 for record in outcome.records)
    assert all(record.ttft >= 0.05 for record in outcome.records)
    assert outcome.wall_s >= 2 * (0.05 + 7 * 0.005), "six requests in two turns of three streams"


async def test_arrivals_at_a_rate_do_not_wait_for_answers(engine: Process) -> None:
    load = Load(requests=20, max_tokens=100, rate=1000)
    started = time.perf_counter()
    outcome = await run(engine.url, "m", load)
    assert len(outcome.records) == 20
    assert time.perf_counter() - started < 20 * 0.55, "one after another they take 11 s"


@pytest.mark.parametrize(
    ("model", "switches", "told"),
    [("other", {}, "404"), ("m", {"cut_after_tokens": 2}, ""), ("m", {"refuse": "reset"}, "")],
)
async def test_a_failed_request_is_told_and_not_counted(
    engine: Process, model: str, switches: dict[str, object], told: str
) -> None:
    httpx.post(engine.url + "/simulate", json=switches)
    (record,) = (await run(engine.url, model, Load(requests=1, max_tokens=8))).records
    httpx.post(engine.url + "/simulate", json={"cut_after_tokens": 0, "refuse": ""})
    assert record.failure
    assert told in record.failure
    assert record.tokens == 0


def test_targets_are_measured_turn_by_turn(engine: Process, capsys: pytest.CaptureFixture) -> None:
    seconds = iter(range(100))
    targets = [
        Target(name, engine.url, "m", lambda: {"engine": float(next(seconds))}) for name in "AB"
    ]
    first, second = compare(targets, [Load(requests=2, max_tokens=4, streams=2)], rounds=2)
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == list("ABAB")
    assert (first.requests, first.tokens) == (4, 16), "the warm-up is not counted"
    assert first.cpu_s["engine"] == second.cpu_s["engine"] == 2
    assert first.cpu_s["client"] > 0
    assert len(ratios(second, first)) == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], {50: 7.0, 90: 7.0, 99: 7.0}),
        ([float(n) for n in range(1, 101)], {50: 50.0, 90: 90.0, 99: 99.0}),
        ([3.0, 1.0, 2.0], {50: 2.0, 90: 3.0, 99: 3.0}),
    ],
)
def test_percentiles_are_values_that_were_seen(
    values: list[float], expected: dict[int, float]
) -> None:
    assert percentiles(values) == expected


def test_a_section_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    document = tmp_path / "measurements.md"
    document.write_text("a\n<!-- x: written by a program -->\nold\n<!-- x: end -->\nb\n")
    report.write("x", r"new \1 text", document)
    text = document.read_text()
    assert "old" not in text
    assert r"new \1 text" in text
    assert text.startswith("a\n")
    assert text.endswith("\nb\n")
    with pytest.raises(ValueError, match="no markers"):
        report.write("y", "text", document)


def test_cost_is_told_for_each_request_and_for_1000_tokens() -> None:
    result = Result("t", "l", cpu_s={"gateway": 0.5}, tokens=250, requests=10)
    assert result.cpu_ms_per_request("gateway") == 50
    assert result.cpu_s_per_1000_tokens("gateway") == 2
    assert result.cpu_s_per_1000_tokens("HAProxy") == 0
