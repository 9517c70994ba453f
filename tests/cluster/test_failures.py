"""What is lost and what comes back when something is killed; nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import psutil
import pytest
from ray import serve

from cluster.directory import ReplicaState
from cluster.engines.supervisor import processes_of
from tests.cluster.harness import (
    Cluster,
    actors_of,
    coordinator_process,
    eventually,
    gone,
    kill,
    processes_behind,
)


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> Iterator[Cluster]:
    cluster.deploy(
        engine="simulated",
        num_replicas=2,
        engine_args="--ttft 0.01 --itl 0.01 --orphan",
    )
    return cluster


def answers(app: Cluster, times: int = 20) -> list[int]:
    return [app.chat().status_code for _ in range(times)]


@pytest.mark.parametrize("victim", ["engine", "supervisor", "actor"])
def test_a_killed_part_of_a_replica_costs_that_replica_only(app: Cluster, victim: str) -> None:
    before = eventually(lambda: app.ready() if len(app.ready()) == 2 else None, 60)
    record = before[0]
    processes = processes_behind(record)
    assert len(processes_of(processes.tree_id)) >= 2, "the engine has a grandchild to leave behind"
    kill(getattr(processes, victim))
    eventually(
        lambda: record.replica_id not in [replica.replica_id for replica in app.ready()],
        12,
        "the dead replica has left the directory",
    )
    assert answers(app) == [200] * 20
    gone(processes)
    fresh = eventually(lambda: app.ready() if len(app.ready()) == 2 else None, 60, "rebuilt")
    assert record.replica_id not in {replica.replica_id for replica in fresh}
    assert len({replica.ports["http"] for replica in fresh}) == 2


def test_a_dead_engine_is_known_within_half_a_second_and_says_why(app: Cluster) -> None:
    record = eventually(lambda: app.ready() if len(app.ready()) == 2 else None, 60)[0]
    kill(processes_behind(record).engine)
    dead = eventually(
        lambda: [r for r in app.replicas(ReplicaState.DEAD) if r.replica_id == record.replica_id],
        # 0.5 s is the promise; the rest is this test's own looking on a busy machine.
        2,
    )
    assert "SIGKILL" in dead[0].cause


def test_running_replicas_do_not_notice_a_killed_coordinator(app: Cluster) -> None:
    before = eventually(lambda: app.ready() if len(app.ready()) == 2 else None, 60)
    epoch = app.picture().epoch
    kill(coordinator_process())
    assert answers(app) == [200] * 20
    after = eventually(
        lambda: app.picture() if app.picture().epoch not in ("", epoch) else None, 30
    )
    after = eventually(lambda: app.picture() if app.picture().complete else None, 30)
    assert [r.replica_id for r in after.replicas if r.state is ReplicaState.READY] == [
        r.replica_id for r in before
    ]
    assert [r.ports for r in after.replicas if r.state is ReplicaState.READY] == [
        r.ports for r in before
    ]


def test_a_new_replica_after_a_coordinators_death_gets_ports_of_its_own(app: Cluster) -> None:
    before = eventually(lambda: app.ready() if len(app.ready()) == 2 else None, 60)
    kill(coordinator_process())
    kill(processes_behind(before[0]).engine)
    after = eventually(
        lambda: (
            app.ready()
            if len(app.ready()) == 2
            and before[0].replica_id not in [r.replica_id for r in app.ready()]
            else None
        ),
        60,
    )
    assert len({replica.ports["http"] for replica in after}) == 2


def test_a_killed_gateway_comes_back_and_the_engines_never_stopped(app: Cluster) -> None:
    before = eventually(lambda: app.ready() if len(app.ready()) == 2 else None, 60)
    (gateway,) = actors_of("default#Gateway#")
    kill(gateway)
    eventually(lambda: _status(app) == 200, 60, "the gateway answers again")
    assert [r.replica_id for r in app.ready()] == [r.replica_id for r in before]


def test_a_stream_longer_than_serves_default_outlives_its_deletion(app: Cluster) -> None:
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 2500,
        "ignore_eos": True,
        "stream": True,
    }
    seen: list[bytes] = []

    def read() -> None:
        url = app.url + "/v1/chat/completions"
        with httpx.stream("POST", url, json=body, timeout=90) as answer:
            seen.extend(answer.iter_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    eventually(lambda: seen, 20, "the stream began")
    serve.delete("default", _blocking=False)
    reader.join(90)
    assert b"".join(seen).endswith(b"data: [DONE]\n\n")
    assert b"".join(seen).count(b'"content"') >= 2500
    eventually(lambda: not app.replicas(ReplicaState.READY, ReplicaState.DRAINING), 60)
    eventually(lambda: "default" not in serve.status().applications, 60)
    app.deploy(engine="simulated", num_replicas=1)
    assert answers(app, 5) == [200] * 5


@pytest.mark.parametrize("victim", ["actor", "supervisor"])
def test_a_kill_during_the_start_leaves_nothing(app: Cluster, victim: str) -> None:
    serve.delete("default")
    app.begin(engine="simulated", engine_args="--start-seconds 20 --orphan")
    supervisor = eventually(_supervisors, 60)[0]
    tree_id = eventually(lambda: _tree_of(supervisor), 10)
    kill(supervisor.parent() if victim == "actor" else supervisor)
    eventually(lambda: not processes_of(tree_id), 12, "nothing of the tree is left")


def _supervisors() -> list[psutil.Process]:
    return [
        child
        for actor in actors_of("default#")
        for child in actor.children()
        if "supervisor.py" in " ".join(child.cmdline())
    ]


def _tree_of(supervisor: psutil.Process) -> str:
    for child in supervisor.children():
        tree_id: str = child.environ().get("RAYSCEND_TREE_ID", "")
        if tree_id:
            return tree_id
    return ""


def _status(app: Cluster) -> int:
    try:
        return app.chat().status_code
    except httpx.HTTPError:
        return 0
