"""Every environment variable that Rayscend reads, sets, checks or advises on, once.

Ray Serve's own variables are in `serve_apps/serve_settings.py`. `docs/environment.md` would only
repeat this table: print it with `rayscend env`. What to set and what to take
away for a given stack is in `advice.py`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from cluster.environment import cann, mindie, mindspore, rayscend, vllm_mindspore
from cluster.environment.variable import Scope, Variable

__all__ = ["VARIABLES", "Scope", "Variable", "engine_value"]

VARIABLES: Mapping[str, Variable] = {
    variable.name: variable
    for family in (rayscend, vllm_mindspore, mindspore, cann, mindie)
    for variable in family.VARIABLES
}


def engine_value(name: str) -> str:
    """What an engine gets for `name`: the value in our own environment, else the default."""
    return os.environ.get(name) or VARIABLES[name].default or ""
