"""One text out of those of many engines, as Prometheus' own parser reads it."""

from __future__ import annotations

from itertools import groupby

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serve_apps.exposition import Exposition


def _samples(page: Exposition) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(page.text())
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


def _engine(requests: int) -> str:
    registry = CollectorRegistry()
    counter = Counter("vllm:requests", "Requests.", ["model_name"], registry=registry)
    counter.labels("m").inc(requests)
    Histogram("vllm:ttft_seconds", "TTFT.", buckets=(0.1, 1), registry=registry).observe(0.5)
    return generate_latest(registry).decode()


def test_each_family_stands_together_under_one_help_and_one_type() -> None:
    page = Exposition()
    for replica, requests in (("r0", 3), ("r1", 4)):
        page.add(_engine(requests), {"model": "m", "replica": replica})
    lines = page.text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert len(comments) == len(set(comments)) == 8  # two families, and when each was created
    names = [line.split()[2] for line in comments if line.startswith("# TYPE")]
    families = [name for name, _ in groupby(_family(line, names) for line in lines)]
    assert len(families) == len(set(families)), families
    samples = _samples(page)
    for replica, requests in (("r0", 3), ("r1", 4)):
        labels = {("model", "m"), ("replica", replica)}
        assert samples["vllm:requests_total", frozenset(labels | {("model_name", "m")})] == requests
        assert samples["vllm:ttft_seconds_bucket", frozenset(labels | {("le", "1.0")})] == 1


def _family(line: str, names: list[str]) -> str:
    name = line.split()[2] if line.startswith("#") else line.split("{")[0]
    return max((n for n in names if name.startswith(n)), key=len)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a 1", {"model": "m", "replica": "r"}),
        ("a{} 1", {"model": "m", "replica": "r"}),
        ('a{b="c",} 1 1700000000000', {"model": "m", "replica": "r", "b": "c"}),
        ('a{b="} {,model=\\"x"} 1', {"model": "m", "replica": "r", "b": '} {,model="x'}),
        (
            'a{model="x",my_model="y",replica="z"} 1',
            {
                "model": "m",
                "replica": "r",
                "exported_model": "x",
                "my_model": "y",
                "exported_replica": "z",
            },
        ),
    ],
)
def test_labels_are_added_whatever_the_line_has(line: str, expected: dict[str, str]) -> None:
    page = Exposition()
    page.add(line, {"model": "m", "replica": "r"})
    assert _samples(page) == {("a", frozenset(expected.items())): 1.0}


def test_values_are_escaped() -> None:
    page = Exposition()
    page.add("a 1", {"model": 'a "b" \\ c\nd'})
    assert _samples(page) == {("a", frozenset({("model", 'a "b" \\ c\nd')})): 1.0}


@pytest.mark.parametrize("text", ["", "# a comment", "<html>\n{}", "# HELP a without samples"])
def test_what_is_no_sample_is_left_out(text: str) -> None:
    page = Exposition()
    page.add(text, {"model": "m"})
    assert page.text() == ""


def test_the_first_help_and_type_hold_where_engines_differ() -> None:
    page = Exposition()
    page.add("# HELP a Old.\n# TYPE a gauge\na 1\n", {"replica": "r0"})
    page.add("# TYPE a gauge\n# HELP a New.\na 2\n", {"replica": "r1"})
    assert page.text().splitlines() == [
        "# HELP a Old.",
        "# TYPE a gauge",
        'a{replica="r0"} 1',
        'a{replica="r1"} 2',
    ]
