"""`rayscend env`: every variable that matters, what is set here and what that does."""

from __future__ import annotations

import os

import click

from cluster.environment import VARIABLES
from cluster.environment.advice import check_environment
from cluster.findings import Level
from cluster.preflight import judged_stack
from cluster.versions import installed_packages
from serve_apps.cli.arguments import STACK, read_stack
from serve_apps.cli.report import Report, reports


@click.command(short_help="Variables that matter, and what is set here.")
@click.argument("names", nargs=-1)
@click.option("--set", "only_set", is_flag=True, help="Only those that are set here.")
@STACK
@reports
def env(names: tuple[str, ...], only_set: bool, stack: tuple[str, ...]) -> Report:
    """List environment variables: type, default, who sets them, and the value here.

    NAMES are variables or parts of their names. Harmful and misspelt ones are told at the end.
    """
    judged = judged_stack(installed_packages(), read_stack(stack))
    shown = [
        one
        for one in VARIABLES.values()
        if (not names or any(name.casefold() in one.name.casefold() for name in names))
        and (not only_set or one.name in os.environ)
    ]
    findings = [
        finding
        for finding in check_environment(judged, os.environ)
        # What is missing is a matter of what is to run: doctor knows.
        if finding.code != "environment-set" or finding.level is not Level.ERROR
    ]
    lines = []
    for one in shown:
        here = f" = {os.environ[one.name]}" if one.name in os.environ else ""
        lines.append(f"{click.style(one.name, bold=True)}{here}")
        lines.append(
            f"    {one.type}, default {one.default or 'none'}; {one.scope}; {one.versions}"
        )
        lines.append(f"    {one.meaning}")
    data = [
        {
            "name": one.name,
            "type": one.type,
            "default": one.default,
            "scope": one.scope.name.lower(),
            "meaning": one.meaning,
            "versions": one.versions,
            "value": os.environ.get(one.name),
        }
        for one in shown
    ]
    return Report("\n".join(lines), {"variables": data}, findings)
