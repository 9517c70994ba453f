"""A real Prometheus scrapes the gateway and Ray's exporter, and answers the dashboard's queries."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import yaml

from cluster.directory import ReplicaState
from cluster.ports import free_port
from scripts.grafana_dashboard import dashboard
from serve_apps.metrics import METRICS, Source, of
from tests.cluster.harness import Cluster, eventually, kill, processes_behind

pytestmark = pytest.mark.timeout(240)

_REQUESTS = 12
# Processes hand their values to Ray's agent every 10 s.
_EXPORTED_WITHIN_S = 60.0


@dataclass
class Prometheus:
    client: httpx.Client

    def query(self, expression: str) -> list[dict[str, Any]]:
        answer = self.client.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", (expression, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def value(self, expression: str) -> float:
        """The sum of what the expression gives; 0 for nothing."""
        return sum(float(sample["value"][1]) for sample in self.query(expression))

    def targets(self) -> list[dict[str, Any]]:
        answer = self.client.get("/api/v1/targets").json()
        targets: list[dict[str, Any]] = answer["data"]["activeTargets"]
        return targets


def _executable() -> str:
    found = shutil.which("prometheus")
    if found is None:
        missing = "there is no prometheus here: apt-get install prometheus (scripts/ci_packages.sh)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(scope="module")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scrapes, every second, the gateway and the node as Ray would list it."""
    executable, folder = _executable(), tmp_path_factory.mktemp("prometheus")
    (node,) = ray.nodes()
    nodes = [{"targets": [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"]}]
    (folder / "nodes.json").write_text(json.dumps(nodes))
    jobs = [
        {"job_name": "ray", "file_sd_configs": [{"files": [str(folder / "nodes.json")]}]},
        {
            "job_name": "rayscend",
            "static_configs": [{"targets": [cluster.url.removeprefix("http://")]}],
        },
    ]
    settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                executable,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            eventually(lambda: _ready(client, process, folder / "log"), 60, "Prometheus ready")
            yield Prometheus(client)
    finally:
        process.terminate()
        process.wait(20)


def _ready(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-2000:]
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    cluster.deploy(
        engine="simulated",
        served_model_name="demo",
        num_replicas=2,
        engine_args="--ttft 0.02 --itl 0.01",
    )
    with ThreadPoolExecutor(4) as clients:
        answers = list(
            clients.map(lambda _: cluster.chat(stream=True, max_tokens=24), range(_REQUESTS))
        )
    assert all(answer.status_code == 200 for answer in answers)
    return cluster


def test_both_places_are_scraped_without_a_complaint(
    served: Cluster, prometheus: Prometheus
) -> None:
    def all_up() -> bool:
        return {t["health"] for t in prometheus.targets()} == {"up"}

    eventually(all_up, 30, "every target up")
    assert {t["labels"]["job"] for t in prometheus.targets()} == {"ray", "rayscend"}


def test_the_gateway_answers_with_its_own_and_every_engines_metrics(
    served: Cluster, prometheus: Prometheus
) -> None:
    done = f'rayscend_requests_total{{model="demo",outcome="ok"}} >= {_REQUESTS}'
    eventually(lambda: prometheus.query(done), 20, "the gateway's own requests")
    replicas = {record.replica_id for record in served.ready()}
    made = prometheus.query('vllm:generation_tokens_total{job="rayscend",model="demo"}')
    assert {sample["metric"]["replica"] for sample in made} == replicas
    assert sum(float(sample["value"][1]) for sample in made) >= 24 * _REQUESTS
    assert prometheus.value("rayscend_engine_up") == 2
    ttft = "rayscend_ttft_seconds_sum / rayscend_ttft_seconds_count"
    assert 0.02 <= prometheus.value(ttft) < 2
    itl = "rayscend_itl_seconds_sum / rayscend_itl_seconds_count"
    assert 0.008 <= prometheus.value(itl) < 0.5


def test_ray_exports_every_metric_and_the_dashboard_has_data(
    served: Cluster, prometheus: Prometheus
) -> None:
    doomed = served.ready()[0]
    kill(processes_behind(doomed).engine)
    eventually(lambda: served.replicas(ReplicaState.DEAD), 20, "a death")

    def missing() -> list[str]:
        names = {sample["metric"]["__name__"] for sample in prometheus.query('{job="ray"}')}
        exported = {name.removesuffix("_bucket") for name in names}
        return [metric.name for metric in METRICS if f"ray_{metric.name}" not in exported]

    eventually(lambda: not missing(), _EXPORTED_WITHIN_S, f"exported: {missing()}")

    def silent() -> list[str]:
        return [
            panel["title"]
            for panel in dashboard()["panels"]
            for target in panel["targets"]
            if not prometheus.query(target["expr"].replace("$__rate_interval", "2m"))
        ]

    # A rate needs two samples, and Ray exports one every ten seconds.
    eventually(lambda: not silent(), _EXPORTED_WITHIN_S, "every panel has data")
    deaths = prometheus.query("ray_rayscend_replica_deaths_total")
    assert [sample["metric"]["cause"] for sample in deaths] == ["killed"]


@pytest.mark.parametrize("source", Source)
def test_ray_labels_say_whose_metric_it_is(
    served: Cluster, prometheus: Prometheus, source: Source
) -> None:
    deployment = {Source.GATEWAY: "Gateway", Source.REPLICA: "demo"}[source]
    for metric in of(source):
        name = f"ray_{metric.name}" + ("_bucket" if metric.buckets else "")
        for sample in prometheus.query(name):
            labels = sample["metric"]
            assert (labels["application"], labels["deployment"]) == ("default", deployment)
            assert set(metric.labels) <= set(labels)
            assert labels["replica"]
