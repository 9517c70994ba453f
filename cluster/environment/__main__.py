"""Prints the table."""

from __future__ import annotations

from cluster.environment import VARIABLES

for variable in VARIABLES.values():
    print(f"{variable.name} ({variable.type}, default {variable.default}): {variable.scope};")
    print(f"    {variable.meaning} [{variable.versions}]")
