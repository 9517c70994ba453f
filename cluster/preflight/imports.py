"""Where a node imports our packages from, and whether it is the same code.

Their names are generic: another distribution's `app` or `cluster` may stand first on a path. This
module imports the standard library only, because it is sent to nodes that may have another
Rayscend, or none.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

PACKAGES = ("app", "cluster", "serve_apps", "ranktables")


def imported() -> dict[str, tuple[str, str, str]]:
    """By package: its folder, the distribution that it came with, and a digest of its sources.

    All three are empty where it cannot be imported; the distribution also where it comes from a
    folder on the path.
    """
    owners = _owners()
    return {name: _found(name, owners.get(name, "")) for name in PACKAGES}


def _owners() -> dict[str, str]:
    owners = {}
    for distribution in importlib.metadata.distributions():
        for name in (distribution.read_text("top_level.txt") or "").split():
            if name in PACKAGES:
                owners[name] = f"{distribution.metadata['Name']} {distribution.version}"
    return owners


def _found(name: str, owner: str) -> tuple[str, str, str]:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin:
        return "", "", ""
    origin = Path(spec.origin)
    files = sorted(origin.parent.rglob("*.py")) if spec.submodule_search_locations else [origin]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(origin.parent).as_posix().encode() + file.read_bytes())
    folder = origin.parent.parent if spec.submodule_search_locations else origin.parent
    return str(folder), owner, digest.hexdigest()[:12]
