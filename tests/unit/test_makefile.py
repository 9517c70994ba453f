"""What `make` promises: nothing is done twice, and Ctrl-C ends `make serve` with code 0."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]

# Stands in for `serve`: says that it runs, ends in good order on SIGINT, notes every argument.
_SERVER = """#!/usr/bin/env python3
import signal, sys, time
interrupts = []
signal.signal(signal.SIGINT, lambda *_: interrupts.append(1))
print("serving", sys.argv[1:], flush=True)
while not interrupts:
    time.sleep(0.05)
time.sleep(0.3)
print("stopped after", len(interrupts), "interrupt", flush=True)
"""


@pytest.fixture(autouse=True)
def outside_of_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test` runs us too; a make below another speaks of the folders it enters."""
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A folder that make takes for a complete environment, with a stand-in for `serve`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/serve").write_text(_SERVER)
    (tmp_path / "bin/serve").chmod(0o755)
    subprocess.run(["make", "-t", "venv", f"VENV={tmp_path}"], cwd=_ROOT, check=True)
    return tmp_path


def _lines(terminal: int) -> Iterator[str]:
    with os.fdopen(os.dup(terminal), errors="replace") as output:
        try:
            yield from output
        except OSError:  # Linux says EIO when the last process has closed the terminal.
            return


def test_ctrl_c_reaches_the_server_alone_and_make_ends_with_code_0(venv: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(_ROOT)
        os.execvp("make", ["make", "serve", f"VENV={venv}", "ARGS=model=/x num_replicas=2"])
    seen = []
    for line in _lines(terminal):
        seen.append(line.strip())
        if line.startswith("serving"):
            os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, seen
    assert "serving ['run', 'app:deploy', 'model=/x', 'num_replicas=2']" in seen
    assert seen[-1].endswith("stopped after 1 interrupt"), seen


def test_the_exit_code_of_the_server_is_kept(venv: Path) -> None:
    (venv / "bin/serve").write_text("#!/bin/sh\nexit 1\n")
    made = subprocess.run(
        ["make", "serve", f"VENV={venv}"], cwd=_ROOT, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert made.returncode == 2
    assert b"Error 1" in made.stderr


def test_a_complete_environment_is_left_alone(venv: Path) -> None:
    made = subprocess.run(["make", "-q", "venv", f"VENV={venv}"], cwd=_ROOT)
    assert made.returncode == 0


def test_a_missing_python_is_told_in_one_line(tmp_path: Path) -> None:
    made = subprocess.run(
        ["make", "venv", f"VENV={tmp_path}/venv", "PYTHON=no-such-python"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 2
    assert "no Python 3.11 as no-such-python. Install it" in made.stderr.splitlines()[0]
