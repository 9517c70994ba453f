"""Which versions fit together: vllm-mindspore, MindFormers, MindIE and what each stands on.

The tables say what is documented to work, as version specifiers (PEP 440); `||` is "or". An empty
one means that nothing is documented (daily builds), so nothing is compared.

Sources: the installation pages, branches and wheels of vllm-mindspore; the README of MindFormers
(for MindSpore, CANN and driver); MindIE-LLM's history (for its `ms` backend).
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cluster.findings import Finding, Level
from cluster.specifiers import Stack, fits, read_version


@dataclass(frozen=True)
class Release:
    """One release of an engine and, by component, the versions it is documented to work with."""

    version: str
    needs: Mapping[str, str]


def _plugin(
    version: str,
    vllm: str,
    mindspore: str = "",
    mindformers: str = "",
    cann: str = "",
    msadapter: str = "",
    **more: str,
) -> Release:
    python = ">=3.9,<3.12"
    needs = {"vllm": vllm, "mindspore": mindspore, "mindformers": mindformers, "cann": cann}
    return Release(version, needs | {"msadapter": msadapter, "python": python} | more)


VLLM_MINDSPORE = (
    _plugin("0.1", "==0.6.6.*", cann=">=8.0rc0"),
    _plugin("0.2", "==0.7.3 || ==0.8.3", "==2.7.*", "==1.6.*", "==8.1.*", "==0.2.*"),
    # Its own vLLM build, of 0.8.3 with patches for data parallelism, calls itself 0.8.4.dev0.
    # Its pages say CANN 8.1, MindFormers says 8.2 for the same MindFormers.
    _plugin(
        "0.3", "==0.8.3 || ==0.8.4.dev0", "==2.7.0", "==1.6.*", "==8.1.* || ==8.2.*", "==0.5.0"
    ),
    _plugin(
        "0.4.0", "==0.9.1", "==2.7.1.*", "==1.7.*", "==8.3.*", "==0.0.5", transformers="==4.51.3"
    ),
    _plugin("0.4", "==0.9.1", "==2.7.2.*", "", "==8.3.* || ==8.5.*", transformers="==4.51.3"),
    _plugin(
        "0.5",
        "==0.11.0",
        "==2.7.1.*",
        "==1.7.*",
        "==8.3.*",
        "==0.0.5",
        transformers="==4.57.1",
        ray=">=2.48.0",
    ),
    _plugin("0.6", "==0.11.0", cann=">=8.3rc1", transformers="==4.57.1", ray=">=2.48.0"),
)
"""The first whose version the installed one starts with is its row."""

MINDFORMERS = tuple(
    Release(version, {"mindspore": mindspore, "cann": cann})
    for version, mindspore, cann in (
        ("1.2", "==2.3.0", "==8.0.*"),
        ("1.3.2", "==2.4.10", "==8.0.*"),
        ("1.3", "==2.4.0", "==8.0.*"),
        ("1.5", "==2.6.0rc1 || ==2.6.0", "==8.1.*"),
        ("1.6", "==2.7.0", "==8.1.* || ==8.2.*"),
        ("1.7", "==2.7.1.*", "==8.3.*"),
        ("1.8", "==2.7.2.*", "==8.5.*"),
        ("1.9", "==2.9.*", "==9.0.*"),
        ("2.0", "==2.10.*", "==9.1.*"),
    )
)

DRIVERS = (
    ("8.0rc2", "24.1.rc2"),
    ("8.0rc3", "24.1.rc3"),
    ("8.0", "24.1.0"),
    ("8.1rc1", "25.0.rc1"),
    ("8.2rc1", "25.2.0"),
    ("8.3rc1", "25.3.rc1"),
    ("8.5", "25.5.0"),
    ("9.0", "26.0.0"),
    ("9.1", "26.1.0"),
)
"""From this CANN on, at least this driver. A newer driver serves older CANN too."""

MINDIE_MS = ">=1.0rc3,<3.0.0b3"
"""The MindIE versions whose backend `ms` exists; 3.0.0 accepts the word and fails late.
Source: MindIE-LLM commit 2072a95 of 2026-03-29."""

MINDIE_LINK = "https://github.com/Ascend/MindIE-LLM/commit/2072a95111a1780f6daa688a20098b0ae432a607"


@dataclass(frozen=True)
class _Policy:
    """What it means when a component is older or newer than documented (None: nothing)."""

    older: Level | None
    newer: Level | None
    why: str
    link: str = field(default="")


_POLICIES: Mapping[str, _Policy] = {
    "vllm": _Policy(
        Level.ERROR, Level.ERROR, "the plugin replaces parts of exactly that vLLM by its own"
    ),
    "mindspore": _Policy(Level.ERROR, Level.ERROR, "operators and graph passes are built for it"),
    "mindformers": _Policy(Level.ERROR, Level.WARNING, "the plugin builds its models and config"),
    "cann": _Policy(
        Level.ERROR,
        Level.WARNING,
        "operators that are missing there fail at run time (E39999)",
        "https://github.com/vllm-project/vllm-ascend/issues/2244",
    ),
    "driver": _Policy(
        Level.ERROR,
        None,
        "a driver older than its CANN refuses it",
        "https://github.com/vllm-project/vllm-ascend/issues/5468",
    ),
    # Its numbers do not ascend (0.2, 0.5.0, 0.0.5), so another number alone proves nothing.
    "msadapter": _Policy(Level.WARNING, Level.WARNING, "it stands in for torch"),
    "transformers": _Policy(Level.WARNING, Level.WARNING, "the plugin pins it"),
    "ray": _Policy(Level.ERROR, None, "the plugin patches Ray's compiled graphs"),
    "python": _Policy(Level.ERROR, Level.ERROR, "its compiled parts are built for those"),
}


def check_stack(stack: Stack, backend: str = "") -> list[Finding]:
    """Say what in an installed stack does not fit together; empty if all that is known fits.

    `backend` is MindIE's backendType, where MindIE is to serve. Components that are not in `stack`
    are not judged, except those that an installed one cannot do without.
    """
    findings = []
    if "vllm-mindspore" in stack:
        findings += _check_release("vllm-mindspore", VLLM_MINDSPORE, stack)
        findings += _check_required(stack)
    if "mindformers" in stack:
        findings += _check_release("mindformers", MINDFORMERS, stack)
    if driver := minimal_driver(stack.get("cann", "")):
        findings += _compare(f"CANN {stack['cann']}", "driver", f">={driver}", stack)
    if "mindie" in stack and backend == "ms":
        findings += _check_mindie(stack["mindie"])
    return _unique(findings)


def release_of(releases: Iterable[Release], version: str) -> Release | None:
    """The row of the table that `version` belongs to; None if there is none."""
    known = read_version(version)
    for release in releases:
        wanted = Version(release.version).release
        if known and known.release[: len(wanted)] == wanted:
            return release
    return None


def minimal_driver(cann: str) -> str | None:
    """The oldest driver documented for this CANN; None if the CANN is older than the table."""
    version = read_version(cann)
    fits = [driver for since, driver in DRIVERS if version and version >= Version(since)]
    return fits[-1] if fits else None


def installed_packages(path: Iterable[str] = sys.path) -> dict[str, str]:
    """Versions of the distributions that matter, in the folders of an interpreter's `sys.path`."""
    wanted = {"vllm-mindspore", "torch", "torchvision", *_POLICIES}
    found = importlib.metadata.distributions(path=list(path))
    names = ((item.name.lower().replace("_", "-"), item.version) for item in found if item.name)
    return {name: version for name, version in names if name in wanted}


def _check_release(name: str, releases: tuple[Release, ...], stack: Stack) -> list[Finding]:
    version = stack[name]
    release = release_of(releases, version)
    if release is None:
        known = ", ".join(release.version for release in releases)
        return [
            Finding(
                "versions-unknown",
                Level.WARNING,
                f"{name} {version}",
                f"this release is not in Rayscend's table ({known}): nothing is known of its needs",
                "compare its release notes with the versions here",
            )
        ]
    return [
        finding
        for component, wanted in release.needs.items()
        for finding in _compare(f"{name} {version}", component, wanted, stack)
    ]


def _compare(who: str, component: str, wanted: str, stack: Stack) -> list[Finding]:
    version = stack.get(component)
    if not version or not wanted or fits(version, wanted):
        return []
    policy = _POLICIES[component]
    known = read_version(version)
    if known is None:
        level: Level | None = Level.WARNING
    else:
        level = policy.older if known < _lowest(wanted) else policy.newer
    if level is None:
        return []
    return [
        Finding(
            f"versions-{component}",
            level,
            f"{component} {version} with {who}",
            f"{who} is documented with {component} {wanted.replace('||', 'or')}: {policy.why}",
            f"install {component} {wanted.replace('||', 'or')}",
            policy.link,
        )
    ]


def _lowest(specifiers: str) -> Version:
    bounds = (bound for part in specifiers.split("||") for bound in SpecifierSet(part.strip()))
    return min(
        Version(bound.version.removesuffix(".*")) for bound in bounds if bound.operator != "<"
    )


def _check_required(stack: Stack) -> list[Finding]:
    findings = [
        Finding(
            "versions-missing",
            Level.ERROR,
            f"vllm-mindspore {stack['vllm-mindspore']} without {name}",
            "it cannot be imported without it",
            f"install {name}",
        )
        for name in ("vllm", "mindspore", "msadapter")
        if name not in stack
    ]
    present = [name for name in ("torch", "torchvision") if name in stack]
    named = " and ".join(f"{name} {stack[name]}" for name in present)
    if present:
        findings.append(
            Finding(
                "versions-torch",
                Level.ERROR,
                f"{named} beside vllm-mindspore",
                "msadapter stands in for torch; with both, imports end in the wrong one",
                f"pip uninstall {' '.join(present)}",
            )
        )
    return findings


def _check_mindie(version: str) -> list[Finding]:
    if fits(version, MINDIE_MS):
        return []
    return [
        Finding(
            "versions-mindie",
            Level.ERROR,
            f'MindIE {version} with backendType "ms"',
            f"only MindIE {MINDIE_MS} can serve with MindSpore",
            "install MindIE 2.3, or serve with vllm-mindspore",
            MINDIE_LINK,
        )
    ]


def _unique(findings: list[Finding]) -> list[Finding]:
    """One finding a component: vllm-mindspore and MindFormers both judge MindSpore and CANN."""
    by_component: dict[str, Finding] = {}
    for finding in findings:
        key = finding.code if finding.code != "versions-missing" else finding.saw
        by_component.setdefault(key, finding)
    return list(by_component.values())
