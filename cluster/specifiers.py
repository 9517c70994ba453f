"""Version specifiers (PEP 440) for what this stack calls a version, and requirements on a stack."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

Stack = Mapping[str, str]
"""Installed versions by component: the names of Python distributions, and cann, driver, mindie."""


def read_version(text: str) -> Version | None:
    """Read a version in any spelling of this stack: 8.3.RC1, 2.0.T3.1, 8.3.RC1.alpha002.

    What cannot be read is cut off at a dot, from the end. None if nothing can.
    """
    if not text.strip()[:1].isdigit():
        return None  # V100R001 would count as 100.post1
    parts = text.strip().split(".")
    for end in range(len(parts), 0, -1):
        try:
            return Version(".".join(parts[:end]))
        except InvalidVersion:
            continue
    return None


@functools.cache
def fits(version: str, specifiers: str) -> bool:
    """Whether `version` is among `specifiers` (`||` is "or"; an empty one takes all)."""
    known = read_version(version)
    return known is not None and any(
        SpecifierSet(part.strip()).contains(known, prereleases=True)
        for part in specifiers.split("||")
    )


def applies(requirements: str, stack: Stack) -> bool:
    """Whether any of the requirements (`vllm-mindspore<0.4; mindie`) is in the stack."""
    return any(
        wanted.name in stack and fits(stack[wanted.name], str(wanted.specifier))
        for wanted in parse_requirements(requirements)
    )


@functools.cache
def parse_requirements(requirements: str) -> tuple[Requirement, ...]:
    """Split requirements at `;`.

    Raises:
        ValueError: one is not a name with version specifiers.
    """
    try:
        return tuple(Requirement(part.strip()) for part in requirements.split(";"))
    except InvalidRequirement as error:
        raise ValueError(f"{requirements}: {error}") from error
