"""An engine of real processes: small servers that start, fail and die in every way."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cluster.engines import child, group
from cluster.engines.base import (
    EngineSpec,
    KnownFailure,
    LaunchPlan,
    Needs,
    Phase,
    PortNeed,
    Probe,
    ProcessPlan,
    Site,
    Stats,
)
from cluster.engines.child import LocalChild
from cluster.engines.group import EngineGroup, PhaseStarted, Ready, Warned
from cluster.engines.supervisor import end_processes, processes_of
from cluster.errors import EngineError, PermanentEngineError, TransientEngineError
from cluster.ports import free_port
from tests.sites import one_node

LIMIT_S = 20.0
SPEC = EngineSpec("fake", "no-model", "fake")

PHASES = (
    Phase("starting", 15, usual_cause="a slow disk"),
    Phase("loading", 15, re.compile("^loading"), "a slow share"),
    Phase("first token", 15),
)
FAILURES = (
    KnownFailure(re.compile(r"port (?P<port>\d+) in use"), "{port} is taken", "try again", True),
    KnownFailure(re.compile(r"unknown flag (?P<flag>\S+)"), "no flag {flag}", "remove it"),
    KnownFailure(re.compile("SIGILL"), "a wrong instruction", "another dtype"),
)

SERVER = """
import http.server, os, signal, subprocess, sys, time
GRANDCHILD = '''
import os, signal, time
if os.fork(): os._exit(0)
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(60)
'''
def stubborn_grandchild():
    subprocess.Popen([sys.executable, "-c", GRANDCHILD]).wait()
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(200, b"running 3")
    def do_POST(self):
        status = 200
{on_probe}
        self.answer(status, b"the body")
    def log_message(self, *args):
        pass
def say(*words):
    print(*words, flush=True)
{before}
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
say("serving")
server.serve_forever()
"""


@dataclass
class FakeEngine:
    """An engine that is one small program."""

    script: str
    name: str = "fake"
    phases: tuple[Phase, ...] = PHASES
    failures: tuple[KnownFailure, ...] = FAILURES
    ports: tuple[PortNeed, ...] = (PortNeed("http"),)

    def check(self, spec: EngineSpec) -> None:
        pass

    def needs(self, spec: EngineSpec) -> Needs:
        return Needs(1, 1)

    def plan(self, spec: EngineSpec, site: Site) -> LaunchPlan:
        port = site.head.ports["http"]
        argv = (sys.executable, self.script, str(port))
        engine = ProcessPlan("engine", argv, {"GIVEN": "1"}, frozenset({"GONE"}))
        return LaunchPlan((engine,), f"http://{site.head.host}:{port}")

    def probe(self, spec: EngineSpec) -> Probe:
        return Probe("/v1/completions", {"max_tokens": 1})

    def stats(self, metrics: str) -> Stats:
        return Stats(running=int(metrics.removeprefix("running ")))


def made(script: str, log: Path, on_event: Callable[[Any], None], **changes: Any) -> EngineGroup:
    engine = FakeEngine(script, **changes)
    plan = engine.plan(SPEC, one_node(free_port()))
    return EngineGroup(engine, SPEC, plan, [LocalChild(plan.head, log)], on_event)


def child_of(engine: EngineGroup) -> LocalChild:
    (only,) = engine.children
    assert isinstance(only, LocalChild)
    return only


@dataclass
class Bench:
    """Makes engine processes for one test and sees to their end."""

    folder: Path
    events: list[Any] = field(default_factory=list)
    processes: list[EngineGroup] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "engine.log"

    def script(self, before: str = "", on_probe: str = "") -> str:
        path = self.folder / "server.py"
        body = SERVER.replace("{before}", textwrap.dedent(before))
        path.write_text(body.replace("{on_probe}", textwrap.indent(on_probe or "pass", " " * 8)))
        return str(path)

    def make(self, before: str = "", on_probe: str = "", **changes: Any) -> EngineGroup:
        script = self.script(before, on_probe)
        self.processes.append(made(script, self.log, self.events.append, **changes))
        return self.processes[-1]


def tree(engine: EngineGroup) -> list[int]:
    return processes_of(child_of(engine).tree_id)


def kill_engine(engine: EngineGroup) -> None:
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)


def kill_supervisor(engine: EngineGroup, signum: int = signal.SIGKILL) -> None:
    pid = child_of(engine).supervisor_pid
    assert pid is not None
    os.kill(pid, signum)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "GRACE_S", 0.5)
    monkeypatch.setattr(group, "GRACE_S", 0.5)
    monkeypatch.setattr(group, "_CRASH_NOTICE_S", 1.5)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for one in bench.processes:
        await one.stop(0)
        assert tree(one) == []


async def failure_of(start: Awaitable[None]) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await start
    return caught.value


async def test_start_tells_its_phases_and_ends_with_a_token(bench: Bench) -> None:
    engine = bench.make("say('loading weights'); say('WARNING hot'); time.sleep(0.3)")
    await engine.start()
    match bench.events:
        case [
            PhaseStarted("starting", "", 0),
            PhaseStarted("loading", "starting", first),
            Warned("WARNING hot"),
            PhaseStarted("first token", "loading", second),
            Ready(whole),
        ]:
            assert 0 < first < whole
            assert 0 < second < whole
        case _:
            pytest.fail(str(bench.events))
    assert engine.tail == ("loading weights", "WARNING hot", "serving")
    assert await engine.stats() == Stats(running=3)
    assert {engine.pid, child_of(engine).supervisor_pid} == set(tree(engine))
    await engine.stop(5)
    assert tree(engine) == []
    assert bench.log.read_text() == "loading weights\nWARNING hot\nserving\n"
    with pytest.raises(OSError):
        await engine.stats()


async def test_environment_is_the_actors_with_additions_and_without_the_unset(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONE", "1")
    monkeypatch.setenv("KEPT", "1")
    engine = bench.make("say([os.environ.get(n) for n in ('KEPT', 'GIVEN', 'GONE', 'SPT_NOENV')])")
    await engine.start()
    assert engine.tail[0] == "['1', '1', None, '1']"


@pytest.mark.parametrize(
    ("before", "kind", "told"),
    [
        ("say('port 8 in use'); say('so'); sys.exit(1)", TransientEngineError, "8 is taken"),
        ("say('unknown flag -x'); say('port 1 in use'); sys.exit(2)", PermanentEngineError, "-x"),
        ("os.kill(os.getpid(), signal.SIGILL)", PermanentEngineError, "a wrong instruction"),
        ("say('odd'); sys.exit(3)", PermanentEngineError, 'exit code 3 in the phase "starting"'),
        ("say('loading'); sys.exit(0)", PermanentEngineError, 'exit code 0 in the phase "loading"'),
        ("os.kill(os.getpid(), signal.SIGKILL)", TransientEngineError, "killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", PermanentEngineError, "killed by SIGSEGV"),
        ("sys.exit(139)", PermanentEngineError, "SIGSEGV"),
        ("os.kill(os.getpid(), 40)", TransientEngineError, "killed by signal 40"),
    ],
)  # fmt: skip
async def test_an_end_during_start_says_why(
    bench: Bench, before: str, kind: type[EngineError], told: str
) -> None:
    engine = bench.make(before)
    error = await failure_of(engine.start())
    assert type(error) is kind
    assert told in str(error)
    assert str(bench.log) in str(error)
    assert tree(engine) == []


async def test_the_tail_is_the_last_fifty_lines_without_progress(bench: Bench) -> None:
    engine = bench.make("""
        for n in range(99): say("early", n)
        for n in range(99): print("loaded", n, end="\\r")
        for n in range(50): say("line", n)
        sys.exit(1)
    """)
    error = await failure_of(engine.start())
    assert error.tail == tuple(f"line {n}" for n in range(50))


async def test_an_interpreter_that_does_not_exist_is_named(bench: Bench) -> None:
    engine = bench.make()
    object.__setattr__(child_of(engine)._plan, "argv", ("/nowhere/python",))
    assert "/nowhere/python" in str(await failure_of(engine.start()))


@pytest.mark.parametrize(
    ("before", "on_probe", "phase", "usual"),
    [
        ("say('hello'); time.sleep(60)", "", "starting", "a slow disk"),
        ("say('loading 1'); say('hello'); time.sleep(60)", "", "loading", "a slow share"),
        ("say('hello')", "time.sleep(60)", "first token", ""),
    ],
)
async def test_a_phase_that_passes_its_limit_is_named(
    bench: Bench, before: str, on_probe: str, phase: str, usual: str
) -> None:
    phases = tuple(
        Phase(one.name, 1.5 if one.name == phase else 15, one.begins, one.usual_cause)
        for one in PHASES
    )
    engine = bench.make(before, on_probe, phases=phases)
    error = await failure_of(engine.start())
    last = "serving" if on_probe else "hello"
    for told in (f'"{phase}"', "1.5 s", f'last line was "{last}"', usual):
        assert told in str(error)
    assert tree(engine) == []


@pytest.mark.parametrize(
    ("on_probe", "told"),
    [
        ("status = 500", "500: the body"),
        ("say('unknown flag --y'); status = 500", "no flag --y"),
        ("os.kill(os.getpid(), signal.SIGILL); time.sleep(60)", "a wrong instruction"),
        ("self.connection.shutdown(2)", "failed"),
    ],
)
async def test_health_alone_is_not_readiness(bench: Bench, on_probe: str, told: str) -> None:
    engine = bench.make(on_probe=on_probe)
    assert told in str(await failure_of(engine.start()))
    assert not any(isinstance(event, Ready) for event in bench.events)
    assert tree(engine) == []


async def test_a_stranger_on_the_engines_port_is_no_engine(bench: Bench) -> None:
    """vLLM binds with SO_REUSEPORT: two servers can share a port and its connections."""

    async def agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    one = bench.make(before="http.server.ThreadingHTTPServer.allow_reuse_port = True")
    port = int(one.url.rpartition(":")[2])
    stranger = await asyncio.start_server(agree, "127.0.0.1", port, reuse_port=True)
    error = await failure_of(one.start())
    stranger.close()
    assert isinstance(error, TransientEngineError)
    assert f"port {port} is also held by process {os.getpid()}" in str(error)
    assert tree(one) == []


@pytest.mark.parametrize("before", ["", "stubborn_grandchild()"])
async def test_death_after_start_is_noticed_with_its_cause(bench: Bench, before: str) -> None:
    engine = bench.make(f"say('port 1 in use, trying another'); {before}")
    await engine.start()
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    error = await asyncio.wait_for(engine.ended(), LIMIT_S)
    assert isinstance(error, TransientEngineError)
    assert "killed by SIGKILL" in str(error)
    assert "taken" not in str(error)
    assert error.tail[-1] == "serving"
    await engine.stop(0)
    assert tree(engine) == []


async def test_kill_of_the_supervisor_ends_the_tree_and_is_told(bench: Bench) -> None:
    engine = bench.make("stubborn_grandchild()")
    await engine.start()
    assert len(tree(engine)) == 3
    kill_supervisor(engine)
    error = await asyncio.wait_for(engine.ended(), LIMIT_S)
    assert "supervisor was killed" in str(error)
    assert tree(engine) == []


async def test_kill_of_the_supervisor_during_start_ends_the_start(bench: Bench) -> None:
    engine = bench.make("stubborn_grandchild(); say('loading'); time.sleep(60)")
    starting = asyncio.create_task(engine.start())
    await eventually(lambda: "loading" in engine.tail)
    kill_supervisor(engine)
    assert "supervisor was killed" in str(await failure_of(starting))
    assert tree(engine) == []


@pytest.mark.parametrize("seen", ["", "up"], ids=["at once", "while it loads"])
async def test_a_cancelled_start_leaves_nothing(bench: Bench, seen: str) -> None:
    engine = bench.make("stubborn_grandchild(); say('up'); time.sleep(60)")
    starting = asyncio.create_task(engine.start())
    await eventually(lambda: not seen or seen in engine.tail)
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await eventually(lambda: tree(engine) == [])


async def test_stop_during_start_ends_the_start(bench: Bench) -> None:
    engine = bench.make("say('up'); time.sleep(60)")
    starting = asyncio.create_task(engine.start())
    await eventually(lambda: "up" in engine.tail)
    await engine.stop(5)
    assert "stopped before it was ready" in str(await failure_of(starting))


async def test_stop_waits_for_the_engine_and_may_be_repeated(bench: Bench) -> None:
    engine = bench.make("""
        def on_term(*_):
            time.sleep(0.3); say("bye"); os._exit(0)
        signal.signal(signal.SIGTERM, on_term)
        stubborn_grandchild()
    """)
    await engine.start()
    await asyncio.gather(engine.stop(10), engine.stop(10))
    await engine.stop(10)
    assert engine.tail[-1] == "bye"
    assert tree(engine) == []
    with suppress(TimeoutError):
        pytest.fail(f"a stop is no death: {await asyncio.wait_for(engine.ended(), 0.1)}")


async def test_stop_ends_the_tree_of_a_supervisor_that_hangs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_STOP_MARGIN_S", 0.5)
    engine = bench.make("stubborn_grandchild()")
    await engine.start()
    kill_supervisor(engine, signal.SIGSTOP)
    await engine.stop(0.2)
    assert tree(engine) == []


async def test_a_listener_that_fails_harms_nothing(bench: Bench) -> None:
    def fail(event: object) -> None:
        raise ValueError(event)

    engine = made(bench.script(), bench.log, fail)
    bench.processes.append(engine)
    await engine.start()


async def test_other_children_do_not_hold_the_lifeline_and_stop_closes_it(bench: Bench) -> None:
    def opened() -> set[str]:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return {os.readlink(link) for link in links if os.path.lexists(link)}

    before = opened()
    engine = bench.make()
    await engine.start()
    ours = {link for link in opened() - before if link.startswith(("pipe", "socket"))}
    listing = ["ls", "-l", "/proc/self/fd"]
    other = subprocess.run(listing, close_fds=False, capture_output=True, text=True, check=True)
    assert ours
    assert not any(link in other.stdout for link in ours)
    await engine.stop(5)
    await eventually(lambda: not opened() & ours)


@pytest.mark.parametrize("before", ["say('up'); time.sleep(60)", "say('up')"])
def test_kill_of_the_actor_leaves_nothing_also_during_start(tmp_path: Path, before: str) -> None:
    script = Bench(tmp_path).script(f"stubborn_grandchild(); {before}")
    root = str(Path(group.__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, __file__, script, str(tmp_path / "engine.log")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    ) as actor:
        assert actor.stdout is not None
        tree_id = ""
        try:
            tree_id = actor.stdout.readline().decode().strip()
            wanted = b"up" if "sleep" in before else b"ready"
            assert any(wanted in line for line in actor.stdout)
            assert len(processes_of(tree_id)) == 3
            actor.kill()
            deadline = time.monotonic() + child.GRACE_S + LIMIT_S
            while processes_of(tree_id):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            actor.kill()
            end_processes(tree_id)


def test_it_runs_in_rays_event_loop_outside_the_main_thread(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")
    bench = Bench(tmp_path)

    async def live_and_die() -> None:
        for kill in (kill_engine, kill_supervisor):
            engine = bench.make("stubborn_grandchild()")
            await engine.start()
            kill(engine)
            await asyncio.wait_for(engine.ended(), LIMIT_S)
            await engine.stop(0)
            assert tree(engine) == []
        engine = bench.make()
        await engine.start()
        await engine.stop(5)
        assert tree(engine) == []

    errors: list[BaseException] = []

    def run(main: Coroutine[Any, Any, None]) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(main)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, args=(live_and_die(),))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert errors == []


async def _act(script: str, log: str) -> None:
    """What an actor does: start an engine, and wait to be killed."""
    child.GRACE_S = 0.5
    engine = made(script, Path(log), lambda event: None)
    print(child_of(engine).tree_id, flush=True)
    starting = asyncio.create_task(engine.start())
    while "up" not in engine.tail:
        await asyncio.sleep(0.02)
    print("up", flush=True)
    await starting
    print("ready", flush=True)
    await engine.ended()


if __name__ == "__main__":
    asyncio.run(_act(*sys.argv[1:]))
