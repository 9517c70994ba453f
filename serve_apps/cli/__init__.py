"""The command line `rayscend`: what can be known and shown without starting anything.

Each module is one command; `report.py` is what they share: text or JSON, findings, exit codes.
"""

from __future__ import annotations

import click

from serve_apps.cli.doctor import doctor
from serve_apps.cli.environment import env
from serve_apps.cli.model import model
from serve_apps.cli.plan import plan
from serve_apps.cli.ranktable import ranktable
from serve_apps.cli.status import status


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Know the cluster before touching it.

    Serving itself is `serve run app:deploy`. Every command takes --json, and ends with 0 if all is
    well, 1 if it found an error, 2 if it was called wrongly.
    """


for _command in (plan, doctor, model, ranktable, env, status):
    main.add_command(_command)
