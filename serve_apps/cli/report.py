"""What every command ends with: text for people or JSON for programs, findings, an exit code."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ParamSpec

import click

from cluster.errors import RayscendError
from cluster.findings import Finding, Level
from ranktables import RankTableError

P = ParamSpec("P")
_COLOURS = {Level.ERROR: "red", Level.WARNING: "yellow", Level.NOTE: "cyan"}


@dataclass(frozen=True)
class Report:
    """What a command has to say: `text` in words, `data` for --json, `findings` in both."""

    text: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return int(any(finding.level is Level.ERROR for finding in self.findings))

    def print(self, as_json: bool) -> None:
        if as_json:
            content = {**self.data, "findings": self.findings}
            click.echo(json.dumps(content, default=_plain, indent=2, ensure_ascii=False))
            return
        if self.text:
            click.echo(self.text)
        for finding in self.findings:
            click.echo(_told(finding))


def reports(command: Callable[P, Report]) -> Callable[..., None]:
    """Give a command --json, print what it returns, and end with its exit code.

    What it raises is told in one line on stderr, or as a finding in JSON; the exit code is 1.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
    @functools.wraps(command)
    def run(*args: P.args, **options: P.kwargs) -> None:
        as_json = bool(options.pop("as_json"))
        try:
            report = command(*args, **options)
        except (RayscendError, RankTableError) as error:
            if not as_json:
                click.echo(str(error), err=True)
                sys.exit(1)
            found = Finding("refused", Level.ERROR, error.saw, error.why, error.remedy)
            report = Report(findings=[found])
        report.print(as_json)
        sys.exit(report.exit_code)

    return run


def progress(line: str) -> None:
    """Tell a person that something goes on, without getting into what a program reads."""
    click.echo(line, err=True)


def _told(finding: Finding) -> str:
    head = click.style(f"{finding.level:<8}", fg=_COLOURS[finding.level])
    parts = [f"{head} {finding.saw}  [{finding.code}]"]
    labels = (("why", finding.why), ("do", finding.remedy), ("see", finding.link))
    parts += [f"         {label + ':':<4} {text}" for label, text in labels if text]
    return "\n".join(parts)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
