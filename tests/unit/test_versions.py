"""Stacks that are documented fit; each way in which one does not is named with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cluster.findings import Level
from cluster.specifiers import applies, fits, read_version
from cluster.versions import (
    _POLICIES,
    DRIVERS,
    MINDFORMERS,
    VLLM_MINDSPORE,
    check_stack,
    installed_packages,
    minimal_driver,
    release_of,
)


def stack(
    plugin: str, vllm: str, mindspore: str, mindformers: str, cann: str, driver: str, **more: str
) -> dict[str, str]:
    parts = {"vllm-mindspore": plugin, "vllm": vllm, "mindspore": mindspore, "cann": cann}
    parts |= {"mindformers": mindformers, "driver": driver, "msadapter": "0.0.5", "python": "3.11"}
    return parts | more


GOOD = stack("0.5.1", "0.11.0+empty", "2.7.1.post1", "1.7.0", "8.3.RC1", "25.3.RC1")
DOCUMENTED = {
    "0.1": stack("0.1.1", "0.6.6.post1", "2.6.0", "1.5.0", "8.1.RC1", "25.0.RC1"),
    "0.2": stack("0.2.0", "0.7.3", "2.7.0", "1.6.0", "8.1.RC1", "25.0.RC1", msadapter="0.2.0"),
    "0.3": stack(
        "0.3.0",
        "0.8.4.dev0+g296c657.empty",
        "2.7.0",
        "1.6.0",
        "8.1.RC1",
        "25.2.0",
        msadapter="0.5.0",
    ),
    "0.4": stack("0.4.0", "0.9.1", "2.7.1", "1.7.0", "8.3.RC1", "25.3.RC1", transformers="4.51.3"),
    "0.4.1": stack("0.4.1", "0.9.1", "2.7.2", "1.8.0", "8.5.0", "25.5.2"),
    "0.5.1": GOOD | {"ray": "2.60.0", "transformers": "4.57.1"},
    "0.5.1, newer driver": GOOD | {"driver": "26.0.rc2"},
    "0.6": stack("0.6.0rc1", "0.11.0", "2.9.0", "1.9.0", "9.0.0", "26.0.0", ray="2.48.0"),
    "MindIE with ms": {"mindie": "2.3.0"},
    "nothing": {},
}


@pytest.mark.parametrize("installed", DOCUMENTED.values(), ids=DOCUMENTED)
def test_a_documented_stack_fits(installed: dict[str, str]) -> None:
    assert check_stack(installed, "ms") == []


FAULTS = {
    "other vLLM": ({"vllm": "0.10.0"}, "versions-vllm", Level.ERROR),
    "newer vLLM": ({"vllm": "0.32.0"}, "versions-vllm", Level.ERROR),
    "older MindSpore": ({"mindspore": "2.6.0"}, "versions-mindspore", Level.ERROR),
    "other patch of MindSpore": ({"mindspore": "2.7.2"}, "versions-mindspore", Level.ERROR),
    "older MindFormers": ({"mindformers": "1.6.0"}, "versions-mindformers", Level.ERROR),
    "older CANN": ({"cann": "8.2.RC1"}, "versions-cann", Level.ERROR),
    "newer CANN": ({"cann": "8.5.0", "driver": "25.5.0"}, "versions-cann", Level.WARNING),
    "old driver": ({"driver": "24.1.0"}, "versions-driver", Level.ERROR),
    "msadapter from an index": ({"msadapter": "0.5.0b1"}, "versions-msadapter", Level.WARNING),
    "old Ray": ({"ray": "2.43.0"}, "versions-ray", Level.ERROR),
    "MindFormers' transformers": (
        {"transformers": "4.51.3"},
        "versions-transformers",
        Level.WARNING,
    ),
    "Python 3.12": ({"python": "3.12.1"}, "versions-python", Level.ERROR),
    "torch left behind": ({"torch": "2.7.1"}, "versions-torch", Level.ERROR),
    "unreadable vLLM": ({"vllm": "unknown"}, "versions-vllm", Level.WARNING),
    "plugin not in the table": ({"vllm-mindspore": "1.2.0"}, "versions-unknown", Level.WARNING),
}


@pytest.mark.parametrize(("change", "code", "level"), FAULTS.values(), ids=FAULTS)
def test_what_does_not_fit_is_named(change: dict[str, str], code: str, level: Level) -> None:
    found = {finding.code: finding for finding in check_stack(GOOD | change)}
    assert found[code].level is level
    assert found[code].why
    assert found[code].remedy
    name, version = next(iter(change.items()))
    assert f"{name} {version}" in found[code].saw


@pytest.mark.parametrize("name", ["vllm", "mindspore", "msadapter"])
def test_what_the_plugin_cannot_do_without_is_missed(name: str) -> None:
    installed = {key: value for key, value in GOOD.items() if key != name}
    (finding,) = check_stack(installed)
    assert (finding.code, finding.level) == ("versions-missing", Level.ERROR)
    assert name in finding.saw


def test_a_component_that_two_judge_is_named_once() -> None:
    codes = [finding.code for finding in check_stack(GOOD | {"cann": "8.1.RC1"})]
    assert codes == ["versions-cann"]


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("1.0.RC3", None),
        ("1.0.0", None),
        ("2.0.T3.1", None),
        ("2.3.0", None),
        ("3.0.0.beta.2", None),
        ("1.0.RC2", Level.ERROR),
        ("3.0.0.beta.3", Level.ERROR),
        ("3.0.0", Level.ERROR),
    ],
)
def test_mindie_serves_mindspore_from_1_0_rc3_until_3_0_0_beta_2(
    version: str, level: Level | None
) -> None:
    levels = [finding.level for finding in check_stack({"mindie": version}, "ms")]
    assert levels == ([level] if level else [])
    assert check_stack({"mindie": version}, "atb") == []


@pytest.mark.parametrize(
    ("cann", "driver"),
    [
        ("8.0.RC3", "24.1.rc3"),
        ("8.0.0", "24.1.0"),
        ("8.3.RC1.alpha002", "25.3.rc1"),
        ("9.2", "26.1.0"),
        ("7.0.0", None),
        ("", None),
        ("V100R001", None),
    ],
)
def test_a_cann_needs_at_least_a_driver(cann: str, driver: str | None) -> None:
    assert minimal_driver(cann) == driver


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("8.3.RC1", "8.3rc1"),
        ("2.0.T3.1", "2.0"),
        ("8.3.RC1.alpha002", "8.3rc1"),
        ("26.0.rc2", "26.0rc2"),
        ("0.8.4.dev0+g296c657.empty", "0.8.4.dev0+g296c657.empty"),
        (" 2.7.1.post1 ", "2.7.1.post1"),
    ],
)
def test_versions_are_read_in_every_spelling(text: str, version: str) -> None:
    assert read_version(text) == Version(version)


def test_the_longer_row_of_a_table_is_not_hidden_by_a_shorter_one() -> None:
    for releases in (VLLM_MINDSPORE, MINDFORMERS):
        for release in releases:
            assert release_of(releases, release.version) is release
    assert release_of(VLLM_MINDSPORE, "0.4.1") is not release_of(VLLM_MINDSPORE, "0.4.0")


def test_the_tables_hold_valid_specifiers_of_components_that_have_a_policy() -> None:
    for release in (*VLLM_MINDSPORE, *MINDFORMERS):
        assert set(release.needs) <= set(_POLICIES)
        for wanted in release.needs.values():
            assert [SpecifierSet(part.strip()) for part in wanted.split("||")]
    assert [Version(cann) for cann, _ in DRIVERS] == sorted(Version(cann) for cann, _ in DRIVERS)


@pytest.mark.parametrize(
    ("requirements", "expected"),
    [
        ("vllm-mindspore", True),
        ("vllm-mindspore>=0.4", True),
        ("vllm-mindspore<0.4", False),
        ("vllm-mindspore<0.4; mindspore>=2.7", True),
        ("mindie", False),
    ],
)
def test_requirements_apply_to_a_stack(requirements: str, expected: bool) -> None:
    assert applies(requirements, GOOD) is expected
    assert fits("0.6.0.rc1", ">=0.4")


def test_installed_packages_are_read_from_any_folder(tmp_path: Path) -> None:
    for name, version in {"vllm_mindspore": "0.5.1", "torch": "2.7.1", "idna": "3.1"}.items():
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    assert installed_packages([str(tmp_path)]) == {"vllm-mindspore": "0.5.1", "torch": "2.7.1"}
