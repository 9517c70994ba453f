"""What one node tells of itself, as plain data that can travel to whoever compares nodes."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import psutil

from cluster.devices.chips import Generation
from cluster.devices.detect import Inventory, Run, detect, run_tool
from cluster.devices.hccn import QUERIES, Nic, parse_conf
from cluster.devices.masks import VISIBLE, Mask
from cluster.devices.software import installed_software
from cluster.preflight.imports import imported
from cluster.specifiers import Stack
from cluster.versions import installed_packages

_ASKED = ("link", "health", "address", "tls")
_SHM = Path("dev/shm")
_SHM_LEFTOVERS = ("*llm_backend_*", "llm_tokenizer_shared_memory_*")
# An engine's parts that outlive it when only its first process was killed.
_LEFTOVERS = re.compile(r"scheduler_init\.py|mindieservice_daemon|mindie_llm_|VLLM::|msrun ")
_COMPARED_FILES = ("config.json", "generation_config.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Machine:
    """One node.

    `interfaces` are addresses by network interface, `host_addresses` what its own name resolves
    to. `nics` is what each NPU's network answered, by physical id and query (None: nothing was
    asked, hccn_tool is not here). Sizes are in bytes. `listeners` are the TCP ports taken, with
    who has them if we may know; `leftovers` commands by pid. `modules` is as `imported` says,
    `model_files` digests by folder and file.
    """

    host: str
    environment: Mapping[str, str] = field(default_factory=dict)
    interfaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    host_addresses: tuple[str, ...] = ()
    inventory: Inventory = field(default_factory=lambda: Inventory((), Mask(()), None, ()))
    nics: Mapping[int, Mapping[str, str | None]] | None = None
    nic_conf: Mapping[int, Nic] = field(default_factory=dict)
    stack: Stack = field(default_factory=dict)
    free_memory: int = 0
    shm_size: int | None = None
    shm_leftovers: tuple[str, ...] = ()
    workdir: str = ""
    workdir_writable: bool = True
    listeners: Mapping[int, str] = field(default_factory=dict)
    leftovers: Mapping[int, str] = field(default_factory=dict)
    modules: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    model_files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def addresses(self) -> set[str]:
        return {address for held in self.interfaces.values() for address in held}

    @property
    def device_gib(self) -> float | None:
        """GiB on the label of the smallest visible device; None without one, or if not known."""
        sizes = [
            device.chip.memory_total_mb / 1024
            for device in self.inventory.visible
            if device.chip and device.chip.memory_total_mb
        ]
        return min(sizes, default=None)

    def __str__(self) -> str:
        devices = self.inventory.devices
        names = sorted({device.chip.name for device in devices if device.chip})
        npus = f"{len(devices)} NPUs {' '.join(names)}".rstrip() if devices else "no NPU"
        return f"{self.host}: {npus}, {self.free_memory / 2**30:.1f} GiB of memory free"


def look(
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/"),
    run: Run = run_tool,
    python: str = "",
    models: tuple[str, ...] = (),
) -> Machine:
    """Look at this machine; nothing is changed and nothing is imported.

    Args:
        environment: that of the engines to come (None: this process's own).
        root: the file system to look at, `run` what runs the vendor's tools on it.
        python: the interpreter that runs the engine (empty: this one).
        models: folders whose small files are to be compared with those of other nodes.
    """
    environment = dict(os.environ if environment is None else environment)
    inventory = detect(environment.get(VISIBLE), root, run)
    home = environment.get("ASCEND_HOME_PATH")
    software = installed_software(root, Path(home) if home else None)
    conf = root / "etc/hccn.conf"
    return Machine(
        host=socket.gethostname(),
        environment=environment,
        interfaces={
            name: tuple(
                one.address.partition("%")[0]
                for one in held
                if one.family in (socket.AF_INET, socket.AF_INET6)
            )
            for name, held in psutil.net_if_addrs().items()
        },
        host_addresses=_resolved(socket.gethostname()),
        inventory=inventory,
        nics=_ask_nics(inventory, run),
        nic_conf=parse_conf(conf.read_text("utf-8", "replace")) if conf.is_file() else {},
        stack=_python(python) | software,
        free_memory=psutil.virtual_memory().available,
        shm_size=shutil.disk_usage(root / _SHM).total if (root / _SHM).is_dir() else None,
        shm_leftovers=tuple(
            sorted(file.name for name in _SHM_LEFTOVERS for file in (root / _SHM).glob(name))
        ),
        workdir=str(Path.cwd()),
        workdir_writable=os.access(Path.cwd(), os.W_OK),
        listeners=_listeners(),
        leftovers=_orphans(),
        modules=imported(),
        model_files={model: _digests(Path(model).expanduser()) for model in models},
    )


def _resolved(name: str) -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        return tuple(sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None)}))
    return ()


def _ask_nics(inventory: Inventory, run: Run) -> dict[int, dict[str, str | None]] | None:
    """Ask each visible NPU's network; 300I Duo has none."""
    answers: dict[int, dict[str, str | None]] = {}
    for device in inventory.visible:
        if device.chip and device.chip.generation is Generation.P310:
            continue
        told: dict[str, str | None] = {}
        for name in _ASKED:
            command = ["hccn_tool", "-i", str(device.physical_id), QUERIES[name].option, "-g"]
            try:
                told[name] = QUERIES[name].read(run(command))
            except (OSError, subprocess.TimeoutExpired):
                return None
        # A card that says nothing of its link was not asked, which is no fault of the link.
        answers[device.physical_id] = {
            name: value for name, value in told.items() if value is not None or name == "address"
        }
    return answers


def _python(python: str) -> dict[str, str]:
    """The packages that matter, and the version, of the engine's interpreter."""
    if not python:
        return installed_packages() | {"python": platform.python_version()}
    code = "import json, platform, sys; print(json.dumps([sys.path, platform.python_version()]))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, timeout=20, check=True)
        path, version = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return installed_packages(path) | {"python": str(version)}


def _listeners() -> dict[int, str]:
    found: dict[int, str] = {}
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr:
            name, port = "", connection.laddr.port
            with contextlib.suppress(psutil.Error):
                name = psutil.Process(connection.pid).name() if connection.pid else ""
            found[port] = found.get(port) or name
    return found


def _orphans() -> dict[int, str]:
    """Parts of engines whose parent is gone."""
    found = {}
    for process in psutil.process_iter(["cmdline", "ppid"]):
        command = " ".join(process.info["cmdline"] or ())
        if process.info["ppid"] == 1 and process.pid != os.getpid() and _LEFTOVERS.search(command):
            found[process.pid] = command[:120]
    return found


def _digests(folder: Path) -> dict[str, str]:
    return {
        name: sha256((folder / name).read_bytes()).hexdigest()[:12]
        for name in _COMPARED_FILES
        if (folder / name).is_file()
    }
