"""The NPUs' own network: what `hccn_tool` answers, what /etc/hccn.conf holds, and what is wrong.

Both count in physical ids. Addresses are given by an administrator (there is no DHCP) and kept by
hccn_tool; the file may be older than the card's own setting.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.findings import Finding, Level


class Query:
    """One question to hccn_tool: `hccn_tool -i N <option> -g`, and where its answer stands."""

    def __init__(self, option: str, pattern: str) -> None:
        self.option = option
        self._pattern = re.compile(pattern, re.IGNORECASE | re.MULTILINE)

    def read(self, text: str) -> str | None:
        """The answer in what hccn_tool printed; None if it has none."""
        found = self._pattern.search(text)
        return found[1].strip() if found else None


QUERIES: Mapping[str, Query] = {
    "link": Query("-link", r"link status:\s*(\w+)"),
    "health": Query("-net_health", r"net health status:\s*(.+)"),
    "address": Query("-ip", r"ipaddr:\s*(\S+)"),
    "netmask": Query("-ip", r"netmask:\s*(\S+)"),
    "gateway": Query("-gateway", r"gateway:\s*([\d.]+)"),
    "netdetect": Query("-netdetect", r"netdetect address:\s*(\S+)"),
    "switch_port": Query("-lldp", r"Ifname:\s*(\S+)"),
    "tls": Query("-tls", r"tls switch\[(\d)\]"),
    "loss_percent": Query("-ping", r"([\d.]+)% packet loss"),
}

_CONF_LINE = re.compile(r"\s*(address|netmask|gateway|netdetect)_(\d+)\s*=\s*(\S+)\s*")
_TLS_LINK = "https://github.com/vllm-project/vllm-ascend/issues/5461"
_STALE_LINK = "https://github.com/vllm-project/vllm-ascend/pull/16847"
_NO_ADDRESS_LINK = "https://github.com/gpustack/gpustack/issues/2551"


@dataclass(frozen=True)
class Nic:
    """What /etc/hccn.conf says of one NPU's network."""

    address: str | None = None
    netmask: str | None = None
    gateway: str | None = None
    netdetect: str | None = None


def parse_conf(text: str) -> dict[int, Nic]:
    """Read /etc/hccn.conf: lines `address_0=192.168.10.21`, the number being the physical id."""
    values: dict[int, dict[str, str]] = {}
    for line in text.splitlines():
        if found := _CONF_LINE.fullmatch(line):
            values.setdefault(int(found[2]), {})[found[1]] = found[3]
    return {device: Nic(**entry) for device, entry in sorted(values.items())}


def check_network(
    answers: Mapping[int, Mapping[str, str | None]], conf: Mapping[int, Nic]
) -> list[Finding]:
    """Judge the network of one machine.

    Args:
        answers: by physical id, what the card answered by name of the query (None: nothing).
        conf: what `parse_conf` read.
    """
    return [
        *(found for device, told in answers.items() for found in _check_card(device, told)),
        *(found for device, told in answers.items() for found in _check_stale(device, told, conf)),
        *_check_unique(answers),
        *check_tls({f"NPU {device}": told.get("tls") for device, told in answers.items()}),
    ]


def check_tls(switches: Mapping[str, str | None]) -> list[Finding]:
    """Demand one TLS switch for all ranks; give it every device of every node, by name."""
    on = sorted(name for name, switch in switches.items() if switch == "1")
    off = sorted(name for name, switch in switches.items() if switch == "0")
    if not on or not off:
        return []
    return [
        Finding(
            "network-tls",
            Level.ERROR,
            f"TLS is on for {', '.join(on)} and off for {', '.join(off)}",
            "ranks with different TLS switches cannot connect; HCCL times out with EI0006",
            "hccn_tool -i N -tls -s enable 0 on each that is on",
            _TLS_LINK,
        )
    ]


def _check_card(device: int, told: Mapping[str, str | None]) -> list[Finding]:
    findings = []
    if told.get("link", "UP") != "UP":
        findings.append(
            Finding(
                "network-link",
                Level.ERROR,
                f"NPU {device}: link status {told['link']}",
                "its ranks cannot reach other nodes",
                "check the cable and the switch port",
            )
        )
    if "address" in told and not _is_address(told["address"]):
        findings.append(
            Finding(
                "network-address",
                Level.ERROR,
                f"NPU {device}: address {told['address'] or 'not set'}",
                "a rank table needs one for every device, and ranks of other nodes connect to it",
                f"hccn_tool -i {device} -ip -s address ADDRESS netmask MASK",
                _NO_ADDRESS_LINK,
            )
        )
    health = told.get("health") or "Success"
    if health != "Success":
        # Without an address to probe, health says nothing about the network itself.
        unprobed = "not set" in health
        findings.append(
            Finding(
                "network-health",
                Level.NOTE if unprobed else Level.ERROR,
                f"NPU {device}: net health {health}",
                "it has no address to probe" if unprobed else "it cannot reach its probe address",
                f"hccn_tool -i {device} -netdetect -s address GATEWAY",
            )
        )
    return findings


def _check_stale(
    device: int, told: Mapping[str, str | None], conf: Mapping[int, Nic]
) -> list[Finding]:
    card, written = told.get("address"), conf.get(device, Nic()).address
    if not _is_address(card) or not written or card == written:
        return []
    return [
        Finding(
            "network-stale-conf",
            Level.ERROR,
            f"/etc/hccn.conf has address_{device}={written}, the card has {card}",
            "rank tables are made from the file, connections go to the card",
            f"write address_{device}={card}, then start the engines again",
            _STALE_LINK,
        )
    ]


def _check_unique(answers: Mapping[int, Mapping[str, str | None]]) -> list[Finding]:
    counts = Counter(told["address"] for told in answers.values() if told.get("address"))
    return [
        Finding(
            "network-duplicate",
            Level.ERROR,
            f"{count} NPUs have address {address}",
            "each device needs its own",
            "give all but one another with hccn_tool -i N -ip -s",
        )
        for address, count in counts.items()
        if count > 1
    ]


def _is_address(text: str | None) -> bool:
    try:
        return not ipaddress.ip_address(text or "").is_unspecified
    except ValueError:
        return False
