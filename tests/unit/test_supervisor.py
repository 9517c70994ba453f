"""The supervisor as a program: real pipes, real processes, nothing left at the end."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.engines import supervisor
from cluster.engines.supervisor import LineSplitter, end_processes, processes_of

LIMIT_S = 20.0
COMMAND = [sys.executable, "-I", "-S", supervisor.__file__]

# A process that leaves the session, survives its parent, and does not listen to TERM.
STUBBORN = """
import os, signal, sys, time
def stubborn(daemon):
    if os.fork():
        return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if daemon and os.fork():
        os._exit(0)
    print("grandchild", flush=True)
    while True:
        time.sleep(60)
"""


PROGRESS = [("progress", "10%"), ("progress", "50%")]


class Supervised:
    """A supervisor with one order, as its client sees it."""

    def __init__(self, folder: Path, program: str, **order: Any) -> None:
        self.tree_id = uuid.uuid4().hex
        script = folder / "program.py"
        script.write_text(STUBBORN + textwrap.dedent(program))
        self.log = folder / "engine.log"
        self.process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, supervisor.TREE_ID: self.tree_id},
            start_new_session=True,
        )
        self.send(
            {
                "argv": [sys.executable, str(script)],
                "env": {**os.environ, supervisor.TREE_ID: self.tree_id, "SPT_NOENV": "1"},
                "log": str(self.log),
                "log_max_bytes": 1 << 30,
                "log_backups": 1,
                "grace_s": 0.5,
                **order,
            }
        )

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def next(self, kind: str) -> Any:
        """Read until a message of this kind comes; return its value."""
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            message = json.loads(raw)
            if kind in message:
                return message[kind]
        raise AssertionError(f"no {kind} came")

    def rest(self) -> list[tuple[str, Any]]:
        assert self.process.stdout is not None
        return [pair for raw in self.process.stdout for pair in json.loads(raw).items()]

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)

    def assert_nothing_left(self) -> None:
        assert processes_of(self.tree_id) == []


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []

    def make(program: str, **order: Any) -> Supervised:
        made.append(Supervised(tmp_path, program, **order))
        return made[-1]

    yield make
    for one in made:
        end_processes(one.tree_id)
        one.process.wait(LIMIT_S)
        for pipe in (one.process.stdin, one.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("ending", "told", "exit_code"),
    [
        ("sys.exit(0)", 0, 0),
        ("sys.exit(3)", 3, 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, 137),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -11, 139),
    ],
)
def test_events_come_in_order_and_the_exit_code_is_the_childs(
    supervise: Callable[..., Supervised], ending: str, told: int, exit_code: int
) -> None:
    one = supervise(f"""
        print("one"); print("two", file=sys.stderr); print("no newline", end="")
        sys.stdout.flush()
        {ending}
    """)
    kinds = one.rest()
    assert kinds[0][0] == "started"
    assert sorted(kinds[1:-1]) == [("line", "no newline"), ("line", "one"), ("line", "two")]
    assert kinds[-1] == ("exited", told)
    assert one.wait() == exit_code


@pytest.mark.parametrize(
    "order", [{"argv": ["/nowhere/python"]}, {"cwd": "/nowhere"}, {"log": "/nowhere/engine.log"}]
)
def test_a_start_that_is_impossible_is_told(
    supervise: Callable[..., Supervised], order: dict[str, Any]
) -> None:
    one = supervise("", **order)
    assert "/nowhere" in one.next("failed")
    assert one.wait() == 127


def test_environment_is_the_given_one_and_only_that(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_ACTOR", "1")
    program = "import json; print(json.dumps(dict(os.environ)))"
    env = {"GIVEN": "with = and \udcff", supervisor.TREE_ID: "0", "LC_CTYPE": "C.UTF-8"}
    assert json.loads(supervise(program, env=env).next("line")) == env


def test_child_has_no_other_descriptors_and_its_own_session(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    one = supervise(
        """
        fds = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in range(100)
               if os.path.exists(f"/proc/self/fd/{fd}")}
        print(fds[0], len(fds), os.getsid(0) == os.getpid(), os.getcwd())
        """,
        cwd=str(tmp_path),
    )
    assert one.next("line") == f"/dev/null 3 True {tmp_path}"


def test_log_rotates_at_line_ends_and_keeps_the_newest(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    one = supervise(
        """
        for n in range(500):
            print(f"line {n:04}", flush=True)
            if n % 50 == 49: time.sleep(0.01)
        """,
        log_max_bytes=1000,
        log_backups=2,
    )
    assert one.wait() == 0
    files = [tmp_path / name for name in ("engine.log.2", "engine.log.1", "engine.log")]
    assert not (tmp_path / "engine.log.3").exists()
    lines = "".join(file.read_text() for file in files).splitlines()
    assert lines == [f"line {n:04}" for n in range(500 - len(lines), 500)]
    assert len(lines) > 100


def test_output_that_nobody_reads_stops_nothing_and_the_log_has_it_all(
    supervise: Callable[..., Supervised],
) -> None:
    one = supervise("""
        for n in range(200_000):
            print("a rather ordinary line of output", n)
        sys.exit(5)
    """)
    eventually(lambda: one.log.exists() and one.log.read_bytes().endswith(b"output 199999\n"))
    messages = one.rest()
    assert one.wait() == 5
    assert len(one.log.read_bytes().splitlines()) == 200_000
    told = sum(kind == "line" for kind, _ in messages)
    assert told + sum(value for kind, value in messages if kind == "dropped") == 200_000
    assert told < 200_000
    assert messages[-1] == ("exited", 5)


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b"one\ntwo\r\nthree", [("line", "one"), ("line", "two"), ("line", "three")]),
        (b"\r10%\r50%\r100%\nnext\n", [*PROGRESS, ("line", "100%"), ("line", "next")]),
        (b"\n \n\r\r\n", []),
        (b"\xff\xfe caf\xc3\xa9 \xc3\n", [("line", "\ufffd\ufffd café \ufffd")]),
        (b"x" * 30_000 + b"\nnext\n", [("line", "x" * 8192), ("line", "next")]),
        (b"y" * 30_000 + b"\r", [("line", "y" * 8192)]),
        (b"\r" * 30_000 + b"end", [("line", "end")]),
        (b"nul \0 and \x1b[31mred\x1b[0m\n", [("line", "nul \0 and \x1b[31mred\x1b[0m")]),
    ],
    ids=["ends", "progress", "blank", "not UTF-8", "long", "long progress", "returns", "control"],
)
@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_lines_are_cut_alike_however_they_arrive(
    data: bytes, pieces: list[tuple[str, str]], chunk: int
) -> None:
    splitter = LineSplitter()
    found = []
    for start in range(0, len(data), chunk):
        found += splitter.feed(data[start : start + chunk])
    assert found + splitter.finish() == pieces


@pytest.mark.parametrize("daemon", [False, True], ids=["setsid", "double fork"])
def test_exit_is_told_at_once_then_stubborn_descendants_are_ended(
    supervise: Callable[..., Supervised], daemon: bool
) -> None:
    one = supervise(f"stubborn({daemon}); time.sleep(0.5); sys.exit(7)", grace_s=1.5)
    assert one.next("line") == "grandchild"
    assert one.next("exited") == 7
    assert len(processes_of(one.tree_id)) >= 2
    assert one.wait() == 7
    one.assert_nothing_left()


@pytest.mark.parametrize("daemon", [False, True], ids=["setsid", "double fork"])
def test_end_of_the_lifeline_ends_the_whole_tree(
    supervise: Callable[..., Supervised], daemon: bool
) -> None:
    one = supervise(f"stubborn({daemon}); signal.signal(15, signal.SIG_IGN); time.sleep(60)")
    one.next("line")
    one.hang_up()
    assert one.wait() == 137
    one.assert_nothing_left()


def test_end_of_the_lifeline_before_the_order_ends_the_supervisor() -> None:
    assert subprocess.run(COMMAND, input=b'{"argv": ["half', timeout=LIMIT_S).returncode == 0


def test_death_of_the_actor_counts_also_while_a_forked_child_holds_the_lifeline(
    tmp_path: Path,
) -> None:
    tree_id = uuid.uuid4().hex
    order = {
        "argv": [sys.executable, "-c", "import time; time.sleep(60)"],
        "env": {supervisor.TREE_ID: tree_id},
        "log": str(tmp_path / "engine.log"),
        "log_max_bytes": 1000,
        "log_backups": 0,
        "grace_s": 0.5,
    }
    actor = f"""
import os, subprocess, time
one = subprocess.Popen({COMMAND!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
one.stdin.write({json.dumps(order).encode()!r} + b"\\n"); one.stdin.flush()
one.stdout.readline()
holder = os.fork()
if holder:
    print(holder, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", actor], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        holder = int(process.stdout.readline())
        try:
            assert processes_of(tree_id)
            process.kill()
            eventually(lambda: not processes_of(tree_id))
            os.kill(holder, 0)
        finally:
            os.kill(holder, signal.SIGKILL)
            end_processes(tree_id)


def test_stop_asks_the_child_first_and_lets_it_end_its_own(
    supervise: Callable[..., Supervised],
) -> None:
    one = supervise("""
        import subprocess
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        def on_term(*_):
            time.sleep(0.3)
            print("worker lives" if worker.poll() is None else "worker was ended", flush=True)
            worker.kill()
            sys.exit(0)
        signal.signal(signal.SIGTERM, on_term)
        print("up", flush=True)
        time.sleep(60)
    """)
    one.next("line")
    one.send({"stop": 10})
    assert one.rest() == [("line", "worker lives"), ("exited", 0)]
    assert one.wait() == 0
    one.assert_nothing_left()


@pytest.mark.parametrize(("graces", "at_least"), [([0], 0.0), ([0.7], 0.7), ([60, 0.2], 0.2)])
def test_stop_kills_after_the_shortest_grace_that_was_given(
    supervise: Callable[..., Supervised], graces: list[float], at_least: float
) -> None:
    one = supervise("signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)")
    one.next("line")
    begun = time.monotonic()
    for grace in graces:
        one.send({"stop": grace})
    assert one.wait() == 137
    assert at_least <= time.monotonic() - begun < LIMIT_S
    one.assert_nothing_left()


def test_term_to_the_supervisor_itself_is_a_stop(supervise: Callable[..., Supervised]) -> None:
    one = supervise("stubborn(True); time.sleep(60)")
    one.next("line")
    one.process.terminate()
    assert one.next("exited") == -15
    assert one.wait() == 143
    one.assert_nothing_left()


def test_kill_of_the_supervisor_takes_the_child_and_the_mark_finds_the_rest(
    supervise: Callable[..., Supervised],
) -> None:
    one = supervise("stubborn(True); time.sleep(60)")
    child = one.next("started")
    one.next("line")
    one.process.kill()
    one.wait()
    eventually(lambda: child not in processes_of(one.tree_id))
    assert len(processes_of(one.tree_id)) == 1
    assert end_processes(one.tree_id, grace_s=0.2) == []
    one.assert_nothing_left()


def test_orphans_of_the_tree_leave_no_zombies(supervise: Callable[..., Supervised]) -> None:
    one = supervise("""
        for _ in range(20):
            if not os.fork():
                os.fork()
                os._exit(0)
            os.wait()
        print("done", flush=True)
        time.sleep(60)
    """)
    child = one.next("started")
    one.next("line")
    children = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children")
    eventually(lambda: children.read_text().split() == [str(child)])


def test_a_process_that_rewrites_its_title_is_still_found(
    supervise: Callable[..., Supervised],
) -> None:
    pytest.importorskip("setproctitle")
    one = supervise("""
        import setproctitle
        setproctitle.setproctitle("title " * 2000)
        print("up", flush=True)
        time.sleep(60)
    """)
    child = one.next("started")
    one.next("line")
    assert child in processes_of(one.tree_id)


def test_it_is_written_for_python_3_8() -> None:
    ast.parse(Path(supervisor.__file__).read_text(), feature_version=(3, 8))
