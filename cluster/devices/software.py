"""Versions of the driver, the firmware and CANN, from the files that their installers leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_CANN_FILES = (
    "ascend-toolkit/latest/*-linux/ascend_toolkit_install.info",
    "cann/*-linux/ascend_toolkit_install.info",
    "nnrt/latest/*-linux/ascend_nnrt_install.info",
)


def parse_properties(text: str) -> dict[str, str]:
    """Read lines `key=value`, as in version.info and the *_install.info files."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip().strip('"') for key, equals, value in pairs if equals}


def installed_software(root: Path = Path("/"), cann_home: Path | None = None) -> dict[str, str]:
    """The versions of `driver`, `firmware` and `cann` found under `root`; absent ones left out.

    `cann_home` is $ASCEND_HOME_PATH, where it is set: it names the CANN that would be used.
    """
    base = root / _driver_folder(root).lstrip("/")
    candidates = {
        "driver": iter([base / "driver/version.info"]),
        "firmware": iter([base / "firmware/version.info"]),
        "cann": _cann_files(base, cann_home),
    }
    found = {name: _first_version(files) for name, files in candidates.items()}
    return {name: version for name, version in found.items() if version}


def _driver_folder(root: Path) -> str:
    try:
        info = parse_properties((root / "etc/ascend_install.info").read_text("utf-8"))
    except OSError:
        info = {}
    return info.get("Driver_Install_Path_Param", "/usr/local/Ascend")


def _cann_files(base: Path, cann_home: Path | None) -> Iterator[Path]:
    if cann_home:
        yield from sorted(cann_home.glob("*-linux/ascend_*_install.info"))
        yield from sorted(cann_home.glob("ascend_*_install.info"))
    for pattern in _CANN_FILES:
        yield from sorted(base.glob(pattern))


def _first_version(files: Iterator[Path]) -> str | None:
    for file in files:
        try:
            properties = parse_properties(file.read_text("utf-8"))
        except OSError:
            continue
        # The driver's file writes Version=, CANN's version=.
        if version := properties.get("Version") or properties.get("version"):
            return version
    return None
