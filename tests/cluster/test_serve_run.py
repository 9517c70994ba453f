"""The commands that a user types: `serve run app:deploy …`, a config file, Ctrl-C."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from cluster.ports import free_port
from tests.cluster.harness import eventually

ROOT = Path(__file__).parents[2]
SERVE = str(Path(sys.executable).with_name("serve"))


class Shell:
    """Commands run in a session and a temporary folder of their own."""

    def __init__(self) -> None:
        self.tmp = Path(tempfile.mkdtemp(prefix="rs-"))
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY_", "RAYSCEND_HAPROXY"))
        } | {"TMPDIR": str(self.tmp), "RAY_TMPDIR": str(self.tmp), "RAY_AUTH_MODE": "disabled"}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=120
        )

    def start(self, *command: str) -> subprocess.Popen[str]:
        self.log = self.tmp / "console"
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def console(self) -> str:
        return self.log.read_text()

    def hears(self, text: str, within: float = 90) -> None:
        """Wait until the console says `text`; fail with what it says instead."""
        deadline = time.monotonic() + within
        while text not in self.console():
            assert time.monotonic() < deadline, self.console()[-4000:]
            time.sleep(0.1)

    def processes(self) -> list[psutil.Process]:
        """Every process that was started, however indirectly, in our temporary folder."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("RAY_TMPDIR") == str(self.tmp):
                    found.append(process)
            except psutil.Error:
                continue
        return found


def haproxy_folders() -> set[Path]:
    return set(Path("/tmp").glob("rayscend-*"))


@pytest.fixture
def shell() -> Iterator[Shell]:
    shell = Shell()
    yield shell
    for process in shell.processes():
        process.kill()
    shutil.rmtree(shell.tmp, ignore_errors=True)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["num_replica=2"], 'unknown key "num_replica" (did you mean "num_replicas"?)'),
        (["num_replicas=two"], 'num_replicas="two": input should be a valid integer'),
        (["model=/no/such/folder"], "/no/such/folder"),
        (["engine=simulated", "engine_args=--ttfs 1"], "--ttfs"),
        (["engine=simulated", "min_replicas=1"], "min_replicas needs max_replicas"),
    ],
)
def test_a_mistake_costs_one_line_and_no_ray(shell: Shell, args: list[str], told: str) -> None:
    before = haproxy_folders()
    ended = shell.run(SERVE, "run", "app:deploy", *args)
    assert ended.returncode == 1
    line = ended.stderr.strip().splitlines()[-1]
    assert told in line
    assert "Traceback" not in ended.stdout + ended.stderr
    assert not list(shell.tmp.glob("ray/session_*")), "Ray was started"
    assert haproxy_folders() == before, "a temporary folder stayed"


def test_a_taken_port_is_named_before_anything_starts(shell: Shell) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        ended = shell.run(SERVE, "run", "app:deploy", "engine=simulated", f"http_port={port}")
    assert ended.returncode == 1
    assert re.search(rf"http_port={port}. it is taken by process {os.getpid()}", ended.stderr)
    assert not list(shell.tmp.glob("ray/session_*"))


def test_ctrl_c_finishes_running_requests_and_leaves_nothing(shell: Shell) -> None:
    before = haproxy_folders()
    port = free_port()
    server = shell.start(
        SERVE,
        "run",
        "app:deploy",
        "engine=simulated",
        "engine_args=--ttft 0.01 --itl 0.01 --orphan",
        f"http_port={port}",
    )
    url = f"http://127.0.0.1:{port}"
    shell.hears("ready at " + url)
    curl = re.search(r"  (curl .*?\}')", shell.console(), re.DOTALL)
    assert curl is not None
    answer = subprocess.run(["bash", "-c", curl[1]], capture_output=True, text=True, timeout=60)
    assert "Paris" in answer.stdout

    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "stream": True}
    with httpx.stream("POST", url + "/v1/chat/completions", json=body, timeout=60) as stream:
        pieces = stream.iter_bytes()
        seen = next(pieces)
        os.killpg(server.pid, signal.SIGINT)
        interrupted = time.monotonic()
        seen += b"".join(pieces)
    assert seen.endswith(b"data: [DONE]\n\n")
    assert server.wait(60) == 0
    # 10 s is the promise on an idle machine; the stream itself took three of them.
    assert time.monotonic() - interrupted < 25
    eventually(lambda: not shell.processes(), 10, "no process left")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    left = {path.name for path in shell.tmp.iterdir()} - {"console", "ray"}
    assert not left, "Ray's session logs may stay, nothing else"
    assert haproxy_folders() == before


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"applications": [{"import_path": "app:deploy", "args": {"num_replica": 1}}]}, "did you"),
        ({"applications": [{"import_path": "app:deploy", "args": [1]}]}, "mapping"),
        ({"applications": [{"import_path": "other:app"}]}, "no application"),
        ({"models": []}, "no list under applications"),
        ("a: [", "not YAML"),
    ],
)
def test_a_config_file_is_checked_without_ray(shell: Shell, content: object, told: str) -> None:
    file = shell.tmp / "deploy.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    ended = shell.run(sys.executable, "-m", "serve_apps.cli", "plan", "--check", str(file))
    assert ended.returncode == 1
    assert told in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_mistake_in_a_config_file_is_its_deployments_status(shell: Shell) -> None:
    port = free_port()
    file = shell.tmp / "deploy.yaml"
    application = {"name": "default", "import_path": "app:deploy", "args": {"num_replica": 1}}
    file.write_text(yaml.safe_dump({"http_options": {"port": port}, "applications": [application]}))
    shell.start(SERVE, "run", str(file))
    told = 'unknown key "num_replica" (did you mean "num_replicas"?)'
    shell.hears(told)
