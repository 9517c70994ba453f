"""Given a stack, a layout and an environment: what to set, what to take away, what is misspelt.

A stack here is that of one engine: where MindIE and vllm-mindspore share an interpreter, give the
components of the one that is to be started.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from cluster.environment import VARIABLES, Scope
from cluster.environment.rules import RULES, Kind, Rule, Trait
from cluster.findings import Finding, Level
from cluster.specifiers import Stack, applies

Environment = Mapping[str, str]
# At 0.9 a typo in a name is caught, and VLLM_HOST_PORT is no VLLM_HOST_IP.
_ALIKE = 0.9
_SHORT = 10


@dataclass(frozen=True)
class Change:
    """Set `name` to `value`, or take it away (None). A fact that is not known stays `<fact>`."""

    name: str
    value: str | None
    why: str
    level: Level
    link: str = ""


def to_set(
    stack: Stack,
    environment: Environment,
    traits: Collection[Trait] = (),
    node: Mapping[str, str] | None = None,
) -> list[Change]:
    """What has to be set or should be, and is not.

    Args:
        node: what is known of a node, by the names in `Rule`.
    """
    changes: dict[str, Change] = {}
    for rule in _rules(stack, traits):
        name, values = rule.name, _fill(rule.value, node or {}).split("|")
        if rule.kind is Kind.RENAMED:
            name, values = rule.value, [environment.get(name, "")]
            if name in environment or not VARIABLES[name].takes(values[0]):
                continue
        elif not _lacks(rule.kind, environment.get(name, ""), values):
            continue
        level = Level.ERROR if rule.kind in (Kind.REQUIRED, Kind.KEEP) else Level.WARNING
        changes.setdefault(name, Change(name, values[0], rule.why, level, rule.link))
    return list(changes.values())


def to_unset(
    stack: Stack, environment: Environment, traits: Collection[Trait] = ()
) -> list[Change]:
    """What is set and must not be, or is of no use."""
    changes = [
        Change(rule.name, None, rule.why, _UNSET[rule.kind], rule.link)
        for rule in _rules(stack, traits)
        if rule.kind in _UNSET and rule.name in environment
    ]
    for name in environment:
        variable = VARIABLES.get(name)
        if variable and variable.scope is Scope.FORBIDDEN and variable.applies(stack):
            changes.append(Change(name, None, variable.meaning, Level.ERROR))
    return changes


def near_misses(stack: Stack, environment: Environment) -> dict[str, str]:
    """Names that nothing reads, each with the name that was probably meant."""
    known = {name.casefold(): name for name, one in VARIABLES.items() if one.applies(stack)}
    renamed = {rule.name: rule.value for rule in _rules(stack, ()) if rule.kind is Kind.RENAMED}
    found = {}
    for name in environment.keys() - VARIABLES.keys():
        cutoff = 0.6 if name.startswith("RAYSCEND_") else _ALIKE if len(name) > _SHORT else 1.0
        # A typo seldom hits the first letter, and NCCL_SOCKET_IFNAME is no HCCL_SOCKET_IFNAME.
        kin = [other for other in known if other[:1] == name[:1].casefold()]
        if near := difflib.get_close_matches(name.casefold(), kin, n=1, cutoff=cutoff):
            meant = known[near[0]]
            found[name] = renamed.get(meant, meant)
    return dict(sorted(found.items()))


def bad_values(stack: Stack, environment: Environment) -> list[str]:
    """Names of variables whose value is not of their type."""
    return [
        name
        for name, value in environment.items()
        if (variable := VARIABLES.get(name))
        and variable.applies(stack)
        and not variable.takes(value)
    ]


def check_environment(
    stack: Stack,
    environment: Environment,
    traits: Collection[Trait] = (),
    node: Mapping[str, str] | None = None,
) -> list[Finding]:
    """All of the above as findings, the worst first."""
    gone = to_unset(stack, environment, traits)
    findings = [
        *(_as_finding(change, environment) for change in gone),
        *(_as_finding(change, environment) for change in to_set(stack, environment, traits, node)),
        *(
            Finding(
                "environment-value",
                Level.ERROR,
                f"{name}={environment[name]}",
                f"it takes {VARIABLES[name].type}: {VARIABLES[name].meaning}",
            )
            for name in bad_values(stack, environment)
            if name not in {change.name for change in gone}
        ),
        *(
            Finding(
                "environment-name",
                Level.WARNING,
                f"{name} is set",
                f"nothing reads a variable of that name (did you mean {meant}?)",
                f"set {meant} instead",
            )
            for name, meant in near_misses(stack, environment).items()
        ),
    ]
    return sorted(findings, key=lambda finding: list(Level).index(finding.level))


_UNSET = {Kind.FATAL: Level.ERROR, Kind.USELESS: Level.WARNING, Kind.RENAMED: Level.WARNING}


def _rules(stack: Stack, traits: Collection[Trait]) -> Iterator[Rule]:
    for rule in RULES:
        if (rule.only is None or rule.only in traits) and applies(rule.when, stack):
            yield rule


def _lacks(kind: Kind, has: str, values: list[str]) -> bool:
    """Whether a rule of this kind asks for a change of what a variable `has`."""
    known = "<" not in values[0]
    other = known and has.casefold() not in (value.casefold() for value in values)
    wanted = {
        Kind.REQUIRED: not has or other,
        Kind.ADVISED: not has,
        Kind.KEEP: bool(has) and other,
    }
    return wanted.get(kind, False)


def _fill(value: str, node: Mapping[str, str]) -> str:
    return re.sub(r"<(\w+)>", lambda found: node.get(found[1], found[0]), value)


def _as_finding(change: Change, environment: Environment) -> Finding:
    has = environment.get(change.name)
    if change.value is None:
        code, saw, remedy = "unset", f"{change.name}={has}", f"unset {change.name}"
    else:
        code, saw = "set", f"{change.name}={has}" if has else f"{change.name} is not set"
        remedy = f"export {change.name}={change.value}"
        if VARIABLES[change.name].scope in (Scope.SHARED, Scope.PER_NODE):
            remedy += " on every node, before its Ray starts"
    return Finding(f"environment-{code}", change.level, saw, change.why, remedy, change.link)
