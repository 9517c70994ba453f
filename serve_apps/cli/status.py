"""`rayscend status`: the coordinator's directory of replicas."""

from __future__ import annotations

import time

import click

from serve_apps.cli.report import Report, reports


@click.command(short_help="Every replica of the running cluster.")
@click.option("--address", default="auto", help="Ray's address; else the cluster that runs here.")
@reports
def status(address: str) -> Report:
    """Show every replica: its state, phase, ports, and why one died."""
    from cluster.status import read_picture, rows  # imports Ray

    picture = read_picture(address)
    return Report("\n".join(rows(picture.replicas, time.time())), {"picture": picture})
